/* Planning: labels become modes, modes roles, and each role one table of offsets. */
#include <stdlib.h>
#include <string.h>

#include "product.h"

enum { LONGEST = 1 << 16 };  /* of a table of rows or columns: more are loops around it, where modes allow */
enum { FEW_PRODUCTS = 256 }; /* for each index of the outer modes, up to which nothing is packed */
enum { LONG = 32 };          /* of a sum that is computed by itself */

/* The modes of a product while it is planned. */
struct modes {
    int count;
    struct mode all[TENSORS * MODES];
    bool on[TENSORS][TENSORS * MODES];
};

static int64_t magnitude(int64_t step) { return step < 0 ? -step : step; }

static enum error clash(int first, int second)
{
    static const enum error twice[] = {TWICE_A, TWICE_B, LABELS_CD, TWICE_D};
    if (first == second)
        return twice[first];
    if (first == OF_C || second == OF_C)
        return EXTENTS_CD;
    if (first != OF_D && second != OF_D)
        return EXTENTS_AB;
    return first == OF_A || second == OF_A ? EXTENTS_AD : EXTENTS_BD;
}

/* Add the labels of a tensor; a label that stands twice has the sum of its steps: the diagonal. */
static enum error add(struct modes *modes, int which, const struct tensor *tensor, const int64_t *labels)
{
    int at, place, other;
    for (at = 0; at < tensor->rank; at++) {
        for (place = 0; place < modes->count && modes->all[place].label != labels[at]; place++)
            ;
        if (place == modes->count) {
            memset(&modes->all[place], 0, sizeof(struct mode));
            modes->all[place].label = labels[at];
            modes->all[place].extent = tensor->extents[at];
            modes->count++;
        }
        if (modes->all[place].extent != tensor->extents[at]) {
            for (other = 0; other < which && !modes->on[other][place]; other++)
                ;
            return clash(modes->on[which][place] ? which : other, which);
        }
        modes->on[which][place] = true;
        modes->all[place].steps[which] += tensor->strides[at] * size_of(tensor->type);
    }
    return SUCCESS;
}

static enum error c_like_d(const struct tensor *c, const int64_t *idx_c, const struct tensor *d, const int64_t *idx_d)
{
    int at;
    if (c->rank != d->rank)
        return RANKS_CD;
    for (at = 0; at < d->rank; at++)
        if (idx_c[at] != idx_d[at])
            return LABELS_CD;
    for (at = 0; at < d->rank; at++)
        if (c->extents[at] != d->extents[at])
            return EXTENTS_CD;
    return SUCCESS;
}

static int largest_first(const void *x, const void *y)
{
    int64_t a = *(const int64_t *)x, b = *(const int64_t *)y;
    return a < b ? 1 : a > b ? -1 : 0;
}

/* Modes by decreasing steps in a tensor; few, so by insertion. */
static void sort(struct mode *modes, int count, int which)
{
    int at, to;
    for (at = 1; at < count; at++) {
        struct mode moved = modes[at];
        for (to = at; to > 0 && magnitude(modes[to - 1].steps[which]) < magnitude(moved.steps[which]); to--)
            modes[to] = modes[to - 1];
        modes[to] = moved;
    }
}

static int64_t product_of(const struct mode *modes, int count)
{
    int64_t total = 1;
    while (count-- > 0)
        total *= modes[count].extent;
    return total;
}

static bool fill(struct table *table, const struct mode *modes, int count, const int *tensors, int of)
{
    int which, mode;
    table->count = product_of(modes, count);
    for (which = 0; which < of; which++) {
        int64_t *offsets = malloc(sizeof(int64_t) * (size_t)(table->count + 1)), filled = 1, index, at;
        table->offsets[tensors[which]] = offsets;
        if (offsets == NULL)
            return false;
        offsets[0] = 0;
        for (mode = count - 1; mode >= 0 && table->count > 0; mode--) {
            for (index = modes[mode].extent - 1; index > 0; index--) /* backwards, as the first part is read */
                for (at = 0; at < filled; at++)
                    offsets[index * filled + at] = offsets[at] + index * modes[mode].steps[tensors[which]];
            filled *= modes[mode].extent;
        }
    }
    return true;
}

/* Whether two elements of D lie at one address. Where modes do not nest, all addresses are sorted. */
static enum error overlap(const struct modes *modes, int64_t item)
{
    struct mode own[TENSORS * MODES];
    struct table all = {0};
    int count = 0, at, tensor = OF_D;
    int64_t reach = item, total;
    bool nested = true, found = false;
    for (at = 0; at < modes->count; at++)
        if (modes->on[OF_D][at] && modes->all[at].extent != 1)
            own[count++] = modes->all[at];
    sort(own, count, OF_D);
    total = product_of(own, count);
    if (total == 0)
        return SUCCESS;
    for (at = count - 1; at >= 0; at--) {
        if (own[at].steps[OF_D] == 0)
            return OVERLAP_D;
        nested = nested && magnitude(own[at].steps[OF_D]) >= reach;
        reach += (own[at].extent - 1) * magnitude(own[at].steps[OF_D]);
    }
    if (nested)
        return SUCCESS;
    if (total > (1 << 26)) /* more than are sorted */
        return OVERLAP_D;
    if (!fill(&all, own, count, &tensor, 1)) {
        free(all.offsets[OF_D]);
        return NO_MEMORY;
    }
    qsort(all.offsets[OF_D], (size_t)total, sizeof(int64_t), largest_first);
    for (; total > 1; total--)
        found = found || all.offsets[OF_D][total - 2] - all.offsets[OF_D][total - 1] < item;
    free(all.offsets[OF_D]);
    return found ? OVERLAP_D : SUCCESS;
}

/* What a tensor covers: neighbours without a gap are one run. */
static struct cover covered(const struct modes *modes, int which, int64_t item)
{
    struct mode own[TENSORS * MODES];
    struct cover cover = {0};
    int count = 0, at;
    cover.run = item;
    for (at = 0; at < modes->count; at++)
        if (modes->on[which][at] && modes->all[at].extent > 1 && modes->all[at].steps[which] != 0)
            own[count++] = modes->all[at];
    sort(own, count, which);
    for (; count > 0 && magnitude(own[count - 1].steps[which]) <= cover.run; count--) {
        int64_t length = (own[count - 1].extent - 1) * own[count - 1].steps[which];
        cover.run += magnitude(length);
        cover.first += length < 0 ? length : 0;
    }
    cover.past = cover.first + cover.run;
    for (at = 0; at < count; at++) {
        int64_t length = (own[at].extent - 1) * own[at].steps[which];
        cover.extents[at] = own[at].extent;
        cover.steps[at] = magnitude(own[at].steps[which]);
        cover.first += length < 0 ? length : 0;
        cover.past += length > 0 ? length : 0;
    }
    cover.count = count;
    return cover;
}

static void exchange(struct product *plan, struct modes *modes)
{
    int at;
    TAPP_datatype type = plan->types[OF_A];
    bool conjugated = plan->conjugated[OF_A];
    plan->types[OF_A] = plan->types[OF_B];
    plan->types[OF_B] = type;
    plan->conjugated[OF_A] = plan->conjugated[OF_B];
    plan->conjugated[OF_B] = conjugated;
    for (at = 0; at < modes->count; at++) {
        int64_t step = modes->all[at].steps[OF_A];
        bool on = modes->on[OF_A][at];
        modes->all[at].steps[OF_A] = modes->all[at].steps[OF_B];
        modes->all[at].steps[OF_B] = step;
        modes->on[OF_A][at] = modes->on[OF_B][at];
        modes->on[OF_B][at] = on;
    }
    plan->swapped = true;
}

/* The smallest step in D of modes that are in D, in `operand` and not in `other`. */
static int64_t finest(const struct modes *modes, int operand, int other)
{
    int64_t least = INT64_MAX;
    int at;
    for (at = 0; at < modes->count; at++)
        if (modes->on[OF_D][at] && modes->on[operand][at] && !modes->on[other][at] && modes->all[at].extent > 1)
            if (magnitude(modes->all[at].steps[OF_D]) < least)
                least = magnitude(modes->all[at].steps[OF_D]);
    return least;
}

struct role {
    int count;
    struct mode modes[2 * MODES];
};

/* Neighbours that lie together in all tensors become one. */
static void merge(struct role *role)
{
    int at, to = 0, which;
    for (at = 1; at < role->count; at++) {
        struct mode *outer = &role->modes[to], *inner = &role->modes[at];
        bool one = true;
        for (which = 0; which < TENSORS; which++)
            one = one && outer->steps[which] == inner->steps[which] * inner->extent;
        inner->extent *= one ? outer->extent : 1;
        role->modes[one ? to : ++to] = *inner;
    }
    role->count = role->count ? to + 1 : 0;
}

/* The mode that is finest in a tensor becomes the last but one: what it shares lines of memory with is read next. */
static void near(struct role *role, int which)
{
    int finest = role->count - 1, at;
    struct mode moved;
    for (at = 0; at < role->count; at++)
        if (magnitude(role->modes[at].steps[which]) < magnitude(role->modes[finest].steps[which]))
            finest = at;
    if (finest >= role->count - 2)
        return;
    moved = role->modes[finest];
    memmove(role->modes + finest, role->modes + finest + 1, sizeof(struct mode) * (size_t)(role->count - 2 - finest));
    role->modes[role->count - 2] = moved;
}

static void peel(struct product *plan, struct role *role)
{
    while (role->count > 1 && product_of(role->modes, role->count) > LONGEST) {
        plan->outer[plan->outer_count++] = role->modes[0];
        memmove(role->modes, role->modes + 1, sizeof(struct mode) * (size_t)--role->count);
    }
}

/* Few products for each index of the batch modes are not packed, nor is a row alone whose sums go along memory. */
static int way_of(
    const struct role *batch, const struct role *rows, const struct role *columns, const struct role *k, int64_t item)
{
    int64_t of_rows = product_of(rows->modes, rows->count), of_columns = product_of(columns->modes, columns->count);
    int64_t length = product_of(k->modes, k->count);
    bool along = k->count > 0 && magnitude(k->modes[k->count - 1].steps[OF_B]) <= item;
    if (of_rows == 1 && length >= LONG && (along || of_columns == 1))
        return DOTS;
    return batch->count > 0 && of_rows * of_columns * length <= FEW_PRODUCTS ? NEST : BLOCKS;
}

/* The tables of a product whose modes are sound. */
static enum error lay_out(struct product *plan, struct modes *modes)
{
    enum { BATCH, ROWS, COLUMNS, K, LONE_A, LONE_B, ROLES };
    struct role *roles = calloc(ROLES, sizeof *roles);
    const int of_rows[] = {OF_A, OF_C, OF_D}, of_columns[] = {OF_B, OF_C, OF_D}, of_k[] = {OF_A, OF_B};
    enum error error = NO_MEMORY;
    int at;
    if (roles == NULL)
        return NO_MEMORY;
    if (finest(modes, OF_A, OF_B) < finest(modes, OF_B, OF_A))
        exchange(plan, modes);
    for (at = 0; at < modes->count; at++) {
        bool a = modes->on[OF_A][at], b = modes->on[OF_B][at], d = modes->on[OF_D][at];
        int role = a && b ? (d ? BATCH : K) : a ? (d ? ROWS : LONE_A) : (d ? COLUMNS : LONE_B);
        if (modes->all[at].extent != 1)
            roles[role].modes[roles[role].count++] = modes->all[at];
    }
    for (at = 0; at < ROLES; at++) {
        const int by[ROLES] = {OF_D, OF_A, OF_D, OF_B, OF_A, OF_B};
        bool more_rows = product_of(roles[ROWS].modes, roles[ROWS].count) > product_of(roles[COLUMNS].modes, roles[COLUMNS].count);
        sort(roles[at].modes, roles[at].count, at == K && more_rows ? OF_A : by[at]);
        merge(&roles[at]);
    }
    near(&roles[COLUMNS], OF_B);
    peel(plan, &roles[ROWS]);
    peel(plan, &roles[COLUMNS]);
    plan->way = way_of(roles + BATCH, roles + ROWS, roles + COLUMNS, roles + K, size_of(plan->types[OF_B]));
    plan->lanes.extent = 1;
    if (plan->way == NEST) /* along the mode that is finest in D */
        plan->lanes = roles[BATCH].modes[--roles[BATCH].count];
    for (at = 0; at < roles[BATCH].count; at++)
        plan->outer[plan->outer_count++] = roles[BATCH].modes[at];
    plan->outer_total = product_of(plan->outer, plan->outer_count);
    if (fill(&plan->rows, roles[ROWS].modes, roles[ROWS].count, of_rows, 3) &&
        fill(&plan->columns, roles[COLUMNS].modes, roles[COLUMNS].count, of_columns, 3) &&
        fill(&plan->k, roles[K].modes, roles[K].count, of_k, 2) &&
        fill(&plan->alone[OF_A], roles[LONE_A].modes, roles[LONE_A].count, of_k, 1) &&
        fill(&plan->alone[OF_B], roles[LONE_B].modes, roles[LONE_B].count, of_k + 1, 1))
        error = SUCCESS;
    if (plan->alone[OF_A].count == 0 || plan->alone[OF_B].count == 0)
        plan->k.count = 0; /* all sums are empty */
    free(roles);
    return error;
}

static enum error check_types(struct product *plan, TAPP_prectype prec)
{
    int at;
    switch (prec) {
    case TAPP_DEFAULT_PREC: case TAPP_F32F32_ACCUM_F32: case TAPP_F64F64_ACCUM_F64: case TAPP_F16F16_ACCUM_F16:
    case TAPP_F16F16_ACCUM_F32: case TAPP_BF16BF16_ACCUM_F32:
        break;
    default:
        return NO_PRECISION;
    }
    plan->wide = prec == TAPP_F64F64_ACCUM_F64; /* and never less than what the tensors hold */
    for (at = 0; at < TENSORS; at++) {
        plan->wide = plan->wide || type_is_wide(plan->types[at]);
        plan->is_complex = plan->is_complex || type_is_complex(plan->types[at]);
    }
    return plan->is_complex && !type_is_complex(plan->types[OF_D]) ? COMPLEX_TO_REAL : SUCCESS;
}

static enum error planned(
    struct product *plan, struct modes *modes, const struct tensor *const *tensors, const int64_t *const *labels,
    const TAPP_element_op *ops, TAPP_prectype prec)
{
    enum error error = SUCCESS;
    int at;
    for (at = 0; at < TENSORS; at++) {
        if (tensors[at]->rank > 0 && labels[at] == NULL)
            return NO_ARGUMENT;
        if (ops[at] != TAPP_IDENTITY && ops[at] != TAPP_CONJUGATE)
            return NO_OPERATION;
        plan->types[at] = tensors[at]->type;
        plan->conjugated[at] = ops[at] == TAPP_CONJUGATE && type_is_complex(tensors[at]->type);
    }
    if ((error = add(modes, OF_A, tensors[OF_A], labels[OF_A])) != SUCCESS ||
        (error = add(modes, OF_B, tensors[OF_B], labels[OF_B])) != SUCCESS ||
        (error = add(modes, OF_D, tensors[OF_D], labels[OF_D])) != SUCCESS)
        return error;
    for (at = 0; at < modes->count; at++)
        if (!modes->on[OF_A][at] && !modes->on[OF_B][at])
            return ONLY_IN_D;
    if ((error = c_like_d(tensors[OF_C], labels[OF_C], tensors[OF_D], labels[OF_D])) != SUCCESS ||
        (error = add(modes, OF_C, tensors[OF_C], labels[OF_C])) != SUCCESS ||
        (error = overlap(modes, size_of(plan->types[OF_D]))) != SUCCESS ||
        (error = check_types(plan, prec)) != SUCCESS)
        return error;
    plan->in_place = plan->types[OF_C] == plan->types[OF_D];
    for (at = 0; at < modes->count; at++)
        plan->in_place = plan->in_place && (modes->all[at].extent == 1 ||
                                            modes->all[at].steps[OF_C] == modes->all[at].steps[OF_D]);
    for (at = 0; at < TENSORS; at++)
        plan->covers[at] = covered(modes, at, size_of(plan->types[at]));
    return lay_out(plan, modes);
}

TAPP_error TAPP_create_tensor_product(
    TAPP_tensor_product *place, TAPP_handle handle, TAPP_element_op op_A, TAPP_tensor_info A, const int64_t *idx_A,
    TAPP_element_op op_B, TAPP_tensor_info B, const int64_t *idx_B, TAPP_element_op op_C, TAPP_tensor_info C,
    const int64_t *idx_C, TAPP_element_op op_D, TAPP_tensor_info D, const int64_t *idx_D, TAPP_prectype prec)
{
    const struct tensor *tensors[] = {(void *)A, (void *)B, (void *)C, (void *)D};
    const int64_t *labels[] = {idx_A, idx_B, idx_C, idx_D};
    const TAPP_element_op ops[] = {op_A, op_B, op_C, op_D};
    struct product *plan;
    struct modes *modes;
    (void)handle;
    if (place == NULL || !A || !B || !C || !D)
        return NO_ARGUMENT;
    plan = calloc(1, sizeof *plan);
    modes = calloc(1, sizeof *modes);
    if (plan == NULL || modes == NULL) {
        free(plan);
        free(modes);
        return NO_MEMORY;
    }
    plan->fault = planned(plan, modes, tensors, labels, ops, prec);
    free(modes);
    *place = (TAPP_tensor_product)plan;
    return plan->fault;
}

TAPP_error TAPP_destroy_tensor_product(TAPP_tensor_product place)
{
    struct product *plan = (struct product *)place;
    if (plan != NULL) {
        struct table *tables[] = {&plan->rows, &plan->columns, &plan->k, &plan->alone[0], &plan->alone[1]};
        int at, which;
        for (at = 0; at < 5; at++)
            for (which = 0; which < TENSORS; which++)
                free(tables[at]->offsets[which]);
        free(plan);
    }
    return SUCCESS;
}
