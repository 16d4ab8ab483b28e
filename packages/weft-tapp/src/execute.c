/* Execution: a product is cut into tasks, which OpenMP's threads take. */
#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "product.h"

enum { ROWS = 2048, COLUMN_BYTES = 3072, LANES = 2048, SUMS = 16 }; /* of a task */
static const double ALONE = 2e6;                         /* products up to which one thread is as quick */

double weft_half_to_double(uint16_t bits);
double weft_bfloat_to_double(uint16_t bits);

static void read_scalar(double *to, const void *from, TAPP_datatype type)
{
    to[1] = 0;
    switch (type) {
    case TAPP_F32: to[0] = *(const float *)from; break;
    case TAPP_F64: to[0] = *(const double *)from; break;
    case TAPP_C32: to[0] = ((const float *)from)[0]; to[1] = ((const float *)from)[1]; break;
    case TAPP_C64: to[0] = ((const double *)from)[0]; to[1] = ((const double *)from)[1]; break;
    case TAPP_F16: to[0] = weft_half_to_double(*(const uint16_t *)from); break;
    default: to[0] = weft_bfloat_to_double(*(const uint16_t *)from); break;
    }
}

static int threads_for(double products)
{
#ifdef _OPENMP
    return products > ALONE && !omp_in_parallel() ? omp_get_max_threads() : 1;
#else
    (void)products;
    return 1;
#endif
}

static int64_t least(int64_t x, int64_t y) { return x < y ? x : y; }

/* The call at one index of the outer modes. */
static struct call moved(const struct product *plan, const struct call *call, int64_t index)
{
    struct call found = *call;
    int mode, which;
    for (mode = plan->outer_count - 1; mode >= 0; mode--) {
        int64_t at = index % plan->outer[mode].extent;
        index /= plan->outer[mode].extent;
        for (which = 0; which < TENSORS; which++)
            if (found.base[which] != NULL)
                found.base[which] += at * plan->outer[mode].steps[which];
    }
    return found;
}

static enum error run_along(const struct product *plan, const struct call *call, const struct kernel *kernel, int threads)
{
    bool nest = plan->way == NEST;
    int64_t count = nest ? plan->lanes.extent : plan->columns.count, step = nest ? LANES : SUMS;
    int64_t parts = (count + step - 1) / step, tasks = plan->outer_total * parts, task;
#pragma omp parallel for schedule(dynamic, 8) num_threads(threads) if (threads > 1)
    for (task = 0; task < tasks; task++) {
        struct call own = moved(plan, call, task / parts);
        int64_t range[2];
        range[0] = task % parts * step;
        range[1] = least(range[0] + step, count);
        (nest ? kernel->nest : kernel->dots)(plan, &own, range);
    }
    return SUCCESS;
}

static enum error run_blocks(
    const struct product *plan, const struct call *call, const struct kernel *kernel, int threads)
{
    int64_t item = (plan->wide ? 8 : 4) * (plan->is_complex ? 2 : 1), rows = ROWS / kernel->rows * kernel->rows;
    int64_t columns = COLUMN_BYTES / item, row_parts, column_parts, tasks, task;
    size_t bytes;
    char *workspace = NULL;
    column_parts = (plan->columns.count + columns - 1) / columns;
    row_parts = (plan->rows.count + rows - 1) / rows;
    if (plan->outer_total * column_parts * row_parts < threads) { /* every thread has some */
        row_parts = (threads + plan->outer_total * column_parts - 1) / (plan->outer_total * column_parts);
        rows = (plan->rows.count / row_parts / kernel->rows + 1) * kernel->rows;
        row_parts = (plan->rows.count + rows - 1) / rows;
    }
    tasks = plan->outer_total * column_parts * row_parts;
    bytes = kernel->workspace(plan, least(rows, plan->rows.count), least(columns, plan->columns.count));
    bytes = (bytes + 63) / 64 * 64;
    if (posix_memalign((void **)&workspace, 64, bytes * (size_t)threads))
        return NO_MEMORY;
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (task = 0; task < tasks; task++) {
        struct call own = moved(plan, call, task / (column_parts * row_parts));
        int64_t row = task % row_parts * rows, column = task / row_parts % column_parts * columns;
        int64_t of_rows[2], of_columns[2];
        char *own_workspace = workspace;
        of_rows[0] = row;
        of_rows[1] = least(row + rows, plan->rows.count);
        of_columns[0] = column;
        of_columns[1] = least(column + columns, plan->columns.count);
#ifdef _OPENMP
        own_workspace += bytes * (size_t)omp_get_thread_num();
#endif
        kernel->block(plan, &own, of_rows, of_columns, own_workspace);
    }
    free(workspace);
    return SUCCESS;
}

TAPP_error TAPP_execute_product(
    TAPP_tensor_product place, TAPP_executor executor, TAPP_status *status, const void *alpha, const void *A,
    const void *B, const void *beta, const void *C, void *D)
{
    const struct product *plan = (const struct product *)place;
    struct call call;
    const struct kernel *kernel;
    double elements, products;
    int threads;
    (void)executor;
    memset(&call, 0, sizeof call);
    if (plan == NULL || alpha == NULL || beta == NULL)
        return NO_ARGUMENT;
    if (plan->fault != SUCCESS)
        return plan->fault;
    if (status != NULL)
        *status = 0;
    read_scalar(call.alpha, alpha, plan->types[OF_D]);
    read_scalar(call.beta, beta, plan->types[OF_D]);
    call.adds = call.beta[0] != 0 || call.beta[1] != 0;
    if (call.adds && C == NULL && !plan->in_place)
        return NO_C;
    elements = (double)plan->outer_total * (double)plan->rows.count * (double)plan->columns.count *
               (double)plan->lanes.extent;
    if (elements == 0)
        return SUCCESS;
    if (D == NULL || (plan->k.count > 0 && (A == NULL || B == NULL)))
        return NO_ARGUMENT;
    call.base[OF_A] = plan->swapped ? B : A;
    call.base[OF_B] = plan->swapped ? A : B;
    call.base[OF_C] = call.adds ? (C == NULL ? D : C) : NULL;
    call.base[OF_D] = D;
    products = elements * (double)(plan->k.count + 8);
    threads = threads_for(products);
    kernel = kernel_of(plan->wide, plan->is_complex);
    return (plan->way == BLOCKS ? run_blocks : run_along)(plan, &call, kernel, threads);
}

TAPP_error TAPP_execute_batched_product(
    TAPP_tensor_product plan, TAPP_executor executor, TAPP_status *status, int batches, const void *alpha,
    const void **A, const void **B, const void *beta, const void **C, void **D)
{
    int at;
    if (batches > 0 && (A == NULL || B == NULL || D == NULL))
        return NO_ARGUMENT;
    for (at = 0; at < batches; at++) {
        const void *c = C == NULL ? NULL : C[at];
        TAPP_error error = TAPP_execute_product(plan, executor, status, alpha, A[at], B[at], beta, c, D[at]);
        if (error != SUCCESS)
            return error;
    }
    return SUCCESS;
}
