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

/* How the calls of a plan are computed: all of them alike. */
struct work {
    const struct kernel *kernel;
    int threads;
    int64_t rows, columns, row_parts, column_parts; /* of a block, where those are packed */
    size_t bytes;                                   /* of workspace for each thread */
    char *workspace;
};

static void run_along(const struct product *plan, const struct call *call, const struct work *work)
{
    bool nest = plan->way == NEST;
    int64_t count = nest ? plan->lanes.extent : plan->columns.count, step = nest ? LANES : SUMS;
    int64_t parts = (count + step - 1) / step, tasks = plan->outer_total * parts, task;
#pragma omp parallel for schedule(dynamic, 8) num_threads(work->threads) if (work->threads > 1)
    for (task = 0; task < tasks; task++) {
        struct call own = moved(plan, call, task / parts);
        int64_t range[2];
        range[0] = task % parts * step;
        range[1] = least(range[0] + step, count);
        (nest ? work->kernel->nest : work->kernel->dots)(plan, &own, range);
    }
}

/* The blocks of a product, and memory to pack them in. */
static enum error cut(const struct product *plan, struct work *work)
{
    int64_t item = (plan->wide ? 8 : 4) * (plan->is_complex ? 2 : 1), least_rows = work->kernel->rows;
    work->rows = ROWS / least_rows * least_rows;
    work->columns = COLUMN_BYTES / item;
    work->column_parts = (plan->columns.count + work->columns - 1) / work->columns;
    work->row_parts = (plan->rows.count + work->rows - 1) / work->rows;
    if (plan->outer_total * work->column_parts * work->row_parts < work->threads) { /* every thread has some */
        int64_t others = plan->outer_total * work->column_parts;
        work->row_parts = (work->threads + others - 1) / others;
        work->rows = (plan->rows.count / work->row_parts / least_rows + 1) * least_rows;
        work->row_parts = (plan->rows.count + work->rows - 1) / work->rows;
    }
    work->bytes = work->kernel->workspace(
        plan, least(work->rows, plan->rows.count), least(work->columns, plan->columns.count));
    work->bytes = (work->bytes + 63) / 64 * 64;
    return posix_memalign((void **)&work->workspace, 64, work->bytes * (size_t)work->threads) ? NO_MEMORY : SUCCESS;
}

static void run_blocks(const struct product *plan, const struct call *call, const struct work *work)
{
    int64_t tasks = plan->outer_total * work->column_parts * work->row_parts, task;
#pragma omp parallel for schedule(dynamic) num_threads(work->threads) if (work->threads > 1)
    for (task = 0; task < tasks; task++) {
        struct call own = moved(plan, call, task / (work->column_parts * work->row_parts));
        int64_t row = task % work->row_parts * work->rows;
        int64_t column = task / work->row_parts % work->column_parts * work->columns;
        int64_t of_rows[2], of_columns[2];
        char *own_workspace = work->workspace;
        of_rows[0] = row;
        of_rows[1] = least(row + work->rows, plan->rows.count);
        of_columns[0] = column;
        of_columns[1] = least(column + work->columns, plan->columns.count);
#ifdef _OPENMP
        own_workspace += work->bytes * (size_t)omp_get_thread_num();
#endif
        work->kernel->block(plan, &own, of_rows, of_columns, own_workspace);
    }
}

static double elements_of(const struct product *plan)
{
    return (double)plan->outer_total * (double)plan->rows.count * (double)plan->columns.count * (double)plan->lanes.extent;
}

/* What is wrong with the tensors of a call of a plan that has elements. */
static enum error check(const struct product *plan, bool adds, const void *A, const void *B, const void *C, const void *D)
{
    const struct cover *covers = plan->covers;
    if (adds && C == NULL && !plan->in_place)
        return NO_C;
    if (D == NULL || (plan->k.count > 0 && (A == NULL || B == NULL)))
        return NO_ARGUMENT;
    if (plan->k.count > 0 &&
        (overlapping(covers + OF_D, D, covers + OF_A, A) || overlapping(covers + OF_D, D, covers + OF_B, B)))
        return OVERLAP_OPERAND;
    if (adds && C != NULL && !(C == D && plan->in_place) && overlapping(covers + OF_D, D, covers + OF_C, C))
        return OVERLAP_OPERAND;
    return SUCCESS;
}

/* Executions of a plan on several addresses; all is checked, and memory found, before any is written to. */
static enum error execute(
    const struct product *plan, TAPP_status *status, int count, const void *alpha, const void *const *A,
    const void *const *B, const void *beta, const void *const *C, void *const *D)
{
    struct call call;
    struct work work;
    enum error error = SUCCESS;
    int at;
    memset(&call, 0, sizeof call);
    memset(&work, 0, sizeof work);
    if (plan == NULL || alpha == NULL || beta == NULL)
        return NO_ARGUMENT;
    if (plan->fault != SUCCESS)
        return plan->fault;
    if (status != NULL)
        *status = 0;
    read_scalar(call.alpha, alpha, plan->types[OF_D]);
    read_scalar(call.beta, beta, plan->types[OF_D]);
    call.adds = call.beta[0] != 0 || call.beta[1] != 0;
    if (elements_of(plan) == 0)
        return call.adds && C == NULL && !plan->in_place && count > 0 ? NO_C : SUCCESS;
    for (at = 0; at < count; at++)
        if ((error = check(plan, call.adds, A[at], B[at], C == NULL ? NULL : C[at], D[at])) != SUCCESS)
            return error;
    work.threads = threads_for(elements_of(plan) * (double)(plan->k.count + 8));
    work.kernel = kernel_of(plan->wide, plan->is_complex);
    if (plan->way == BLOCKS && count > 0 && (error = cut(plan, &work)) != SUCCESS)
        return error;
    for (at = 0; at < count; at++) {
        const void *c = C == NULL || C[at] == NULL ? D[at] : C[at];
        call.base[OF_A] = plan->swapped ? B[at] : A[at];
        call.base[OF_B] = plan->swapped ? A[at] : B[at];
        call.base[OF_C] = call.adds ? c : NULL;
        call.base[OF_D] = D[at];
        (plan->way == BLOCKS ? run_blocks : run_along)(plan, &call, &work);
    }
    free(work.workspace);
    return SUCCESS;
}

TAPP_error TAPP_execute_product(
    TAPP_tensor_product plan, TAPP_executor executor, TAPP_status *status, const void *alpha, const void *A,
    const void *B, const void *beta, const void *C, void *D)
{
    (void)executor;
    return execute((const struct product *)plan, status, 1, alpha, &A, &B, beta, C == NULL ? NULL : &C, &D);
}

TAPP_error TAPP_execute_batched_product(
    TAPP_tensor_product plan, TAPP_executor executor, TAPP_status *status, int batches, const void *alpha,
    const void **A, const void **B, const void *beta, const void **C, void **D)
{
    (void)executor;
    if (batches < 0)
        return NEGATIVE_BATCHES;
    if (batches > 0 && (A == NULL || B == NULL || D == NULL))
        return NO_ARGUMENT;
    return execute((const struct product *)plan, status, batches, alpha, A, B, beta, C, D);
}
