/* The kernels for one type of sums and one level of instructions: REAL, COMPLEX (0 or 1), VECTOR (bytes), REGISTERS
 * for rows of a register block and NAMED(), which makes names, are defined by kernels.c, once for each.
 *
 * Complex numbers are packed and summed as planes, their real parts before their imaginary ones. */

#define PLANES (1 + COMPLEX)
#define LANES ((int)(VECTOR / sizeof(REAL)))
#define WIDTH (2 * LANES) /* of a register block */
#define BLOCK_ROWS (REGISTERS / PLANES)
#define SPAN (8 * WIDTH) /* elements that are read at once where nothing is packed */

typedef REAL NAMED(vec) __attribute__((vector_size(VECTOR), may_alias));
#define vec NAMED(vec)

/* Read `count` elements at `from` plus offsets into planes; `together` says that they lie side by side. */
static inline __attribute__((always_inline)) void NAMED(lanes)(
    TAPP_datatype type, bool conjugated, const char *from, const int64_t *offsets, bool together, int count, REAL *re,
    REAL *im, bool add)
{
    int at;
    (void)conjugated;
#define READ(T, REAL_PART, IMAGINARY_PART)                                                                             \
    if (together && !add)                                                                                              \
        for (at = 0; at < count; at++) {                                                                               \
            const T *x = (const T *)(from + offsets[0]) + at * (int)(type_is_complex_(type) ? 2 : 1);                  \
            re[at] = (REAL)(REAL_PART);                                                                                \
            if (COMPLEX)                                                                                               \
                im[at] = (REAL)(IMAGINARY_PART);                                                                       \
        }                                                                                                              \
    else                                                                                                               \
        for (at = 0; at < count; at++) {                                                                               \
            const T *x = (const T *)(from + offsets[at]);                                                              \
            re[at] = (REAL)(REAL_PART) + (add ? re[at] : 0);                                                           \
            if (COMPLEX)                                                                                               \
                im[at] = (REAL)(IMAGINARY_PART) + (add ? im[at] : 0);                                                  \
        }                                                                                                              \
    return;
    switch (type) {
    case TAPP_F32: READ(float, x[0], 0)
    case TAPP_F64: READ(double, x[0], 0)
    case TAPP_C32: READ(float, x[0], conjugated ? -x[1] : x[1])
    case TAPP_C64: READ(double, x[0], conjugated ? -x[1] : x[1])
    case TAPP_F16: READ(uint16_t, half_to_float(x[0]), 0)
    default: READ(uint16_t, bfloat_to_float(x[0]), 0)
    }
#undef READ
}

static inline __attribute__((always_inline)) void NAMED(store)(
    TAPP_datatype type, bool conjugated, char *to, const int64_t *offsets, bool together, int count, const REAL *re,
    const REAL *im)
{
    int at;
    (void)im, (void)conjugated;
#define WRITE(T, STORE)                                                                                                \
    if (together)                                                                                                      \
        for (at = 0; at < count; at++) {                                                                               \
            T *x = (T *)(to + offsets[0]) + at * (int)(type_is_complex_(type) ? 2 : 1);                                \
            STORE;                                                                                                     \
        }                                                                                                              \
    else                                                                                                               \
        for (at = 0; at < count; at++) {                                                                               \
            T *x = (T *)(to + offsets[at]);                                                                            \
            STORE;                                                                                                     \
        }                                                                                                              \
    return;
    switch (type) {
    case TAPP_F32: WRITE(float, x[0] = (float)re[at])
    case TAPP_F64: WRITE(double, x[0] = (double)re[at])
    case TAPP_C32: WRITE(float, x[0] = (float)re[at]; x[1] = (float)(conjugated ? -im[at] : im[at]))
    case TAPP_C64: WRITE(double, x[0] = (double)re[at]; x[1] = (double)(conjugated ? -im[at] : im[at]))
    case TAPP_F16: WRITE(uint16_t, x[0] = double_to_half((double)re[at]))
    default: WRITE(uint16_t, x[0] = double_to_bfloat((double)re[at]))
    }
#undef WRITE
}

/* Read elements where types are not known when this is compiled. */
static __attribute__((noinline)) void NAMED(fetch)(
    TAPP_datatype type, bool conjugated, const char *from, const int64_t *offsets, bool together, int count, REAL *re,
    REAL *im, bool add)
{
    NAMED(lanes)(type, conjugated, from, offsets, together, count, re, im, add);
}

/* Pack `width` rows or columns of which `count` are there, k after k: those that are not are zero. */
static inline __attribute__((always_inline)) void NAMED(pack_of)(
    TAPP_datatype type, bool conjugated, const char *from, const struct table *alone, const int64_t *own_alone,
    const int64_t *offsets, int count, const int64_t *k, int64_t length, const int width, REAL *to)
{
    bool together = side_by_side(offsets, count, size_of_(type));
    int64_t at, each;
    if (count < width)
        memset(to, 0, sizeof(REAL) * (size_t)(length * width * PLANES));
    for (at = 0; at < length; at++, to += width * PLANES) {
        if (count == width)
            NAMED(lanes)(type, conjugated, from + k[at] + own_alone[0], offsets, together, width, to, to + width, false);
        else
            NAMED(lanes)(type, conjugated, from + k[at] + own_alone[0], offsets, together, count, to, to + width, false);
        for (each = 1; each < alone->count; each++)
            NAMED(fetch)(type, conjugated, from + k[at] + own_alone[each], offsets, false, count, to, to + width, true);
    }
}

static void NAMED(pack)(
    const struct product *plan, int which, const char *from, const int64_t *offsets, int count, int64_t first,
    int64_t length, REAL *to)
{
    const struct table *alone = &plan->alone[which];
    const int64_t *own = alone->offsets[which], *k = plan->k.offsets[which] + first;
    bool conjugated = plan->conjugated[which];
#define OF(T)                                                                                                          \
    case T:                                                                                                            \
        if (which == OF_A)                                                                                             \
            NAMED(pack_of)(T, conjugated, from, alone, own, offsets, count, k, length, BLOCK_ROWS, to);                \
        else                                                                                                           \
            NAMED(pack_of)(T, conjugated, from, alone, own, offsets, count, k, length, WIDTH, to);                     \
        break;
    switch (plan->types[which]) {
        OF(TAPP_F32) OF(TAPP_F64) OF(TAPP_C32) OF(TAPP_C64) OF(TAPP_F16) OF(TAPP_BF16)
    }
#undef OF
}

/* A register block: the sum over k of rows times columns, into a tile of BLOCK_ROWS x WIDTH, plane after plane. */
static void NAMED(multiply)(int64_t length, const REAL *a, const REAL *b, REAL *tile, bool add)
{
    vec sums[PLANES][BLOCK_ROWS][2];
    int row, at, plane;
    int64_t k;
    for (plane = 0; plane < PLANES; plane++)
#pragma GCC unroll 16
        for (row = 0; row < BLOCK_ROWS; row++)
            for (at = 0; at < 2; at++)
                sums[plane][row][at] = (vec){0};
    for (k = 0; k < length; k++, a += BLOCK_ROWS * PLANES, b += WIDTH * PLANES) {
        const vec *columns = (const vec *)b;
        vec re0 = columns[0], re1 = columns[1];
#if COMPLEX
        vec im0 = columns[2], im1 = columns[3];
#endif
#pragma GCC unroll 16
        for (row = 0; row < BLOCK_ROWS; row++) {
            REAL x = a[row];
            sums[0][row][0] += x * re0;
            sums[0][row][1] += x * re1;
#if COMPLEX
            REAL y = a[BLOCK_ROWS + row];
            sums[1][row][0] += x * im0;
            sums[1][row][1] += x * im1;
            sums[0][row][0] -= y * im0;
            sums[0][row][1] -= y * im1;
            sums[1][row][0] += y * re0;
            sums[1][row][1] += y * re1;
#endif
        }
    }
    for (plane = 0; plane < PLANES; plane++)
#pragma GCC unroll 16
        for (row = 0; row < BLOCK_ROWS; row++)
            for (at = 0; at < 2; at++) {
                vec *place = (vec *)(tile + (plane * BLOCK_ROWS + row) * WIDTH) + at;
                if (add)
                    sums[plane][row][at] += *place;
                *place = sums[plane][row][at];
            }
}

/* Multiply sums by alpha, add C times beta, convert and store: elements of one row or lane after lane of D. */
static void NAMED(finish)(
    const struct product *plan, const struct call *call, int64_t c_offset, const int64_t *of_c, int64_t d_offset,
    const int64_t *of_d, int count, REAL *re, REAL *im)
{
    REAL alpha = (REAL)call->alpha[0], beta = (REAL)call->beta[0];
    int at;
#if COMPLEX
    REAL alpha_im = (REAL)call->alpha[1], beta_im = (REAL)call->beta[1];
    for (at = 0; at < count; at++) {
        REAL x = re[at], y = im[at];
        re[at] = alpha * x - alpha_im * y;
        im[at] = alpha * y + alpha_im * x;
    }
#else
    for (at = 0; at < count; at++)
        re[at] *= alpha;
#endif
    if (call->adds) {
        REAL own[2 * SPAN];
        bool together = side_by_side(of_c, count, size_of_(plan->types[OF_C]));
        NAMED(fetch)(plan->types[OF_C], plan->conjugated[OF_C], call->base[OF_C] + c_offset, of_c, together, count, own,
                     own + SPAN, false);
        for (at = 0; at < count; at++) {
#if COMPLEX
            re[at] += beta * own[at] - beta_im * own[SPAN + at];
            im[at] += beta * own[SPAN + at] + beta_im * own[at];
#else
            re[at] += beta * own[at];
#endif
        }
    }
    NAMED(store)(plan->types[OF_D], plan->conjugated[OF_D], (char *)call->base[OF_D] + d_offset, of_d,
                 side_by_side(of_d, count, size_of_(plan->types[OF_D])), count, re, im);
}

static int64_t NAMED(depth)(const struct product *plan) { return plan->k.count < K_BLOCK ? plan->k.count : K_BLOCK; }

static size_t NAMED(workspace)(const struct product *plan, int64_t rows, int64_t columns)
{
    int64_t tiles = 1, slivers = (columns + WIDTH - 1) / WIDTH, depth = NAMED(depth)(plan);
    if (plan->k.count > K_BLOCK)
        tiles = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS * slivers;
    return sizeof(REAL) * PLANES * (size_t)(depth * (slivers * WIDTH + BLOCK_ROWS) + tiles * BLOCK_ROWS * WIDTH);
}

/* Columns are packed once for each block of k, rows just before they meet them. Sums over several blocks of k wait in
 * tiles; those over one are finished at once. */
static void NAMED(block)(
    const struct product *plan, const struct call *call, const int64_t rows[2], const int64_t columns[2], char *workspace)
{
    int64_t slivers = (columns[1] - columns[0] + WIDTH - 1) / WIDTH, depth = NAMED(depth)(plan), first = 0, row, at;
    int64_t item = sizeof(REAL) * PLANES;
    REAL *tiles = (REAL *)workspace, *panel, *rows_panel;
    int64_t count = plan->k.count > K_BLOCK ? (rows[1] - rows[0] + BLOCK_ROWS - 1) / BLOCK_ROWS * slivers : 1;
    int line;
    panel = (REAL *)(workspace + item * BLOCK_ROWS * WIDTH * count);
    rows_panel = panel + slivers * WIDTH * PLANES * depth;
    do {
        int64_t length = plan->k.count - first < K_BLOCK ? plan->k.count - first : K_BLOCK;
        bool last = first + length == plan->k.count;
        REAL *tile = tiles;
        for (at = 0; at < slivers && length > 0; at++) {
            int64_t from = columns[0] + at * WIDTH;
            int there = (int)(columns[1] - from < WIDTH ? columns[1] - from : WIDTH);
            NAMED(pack)(plan, OF_B, call->base[OF_B], plan->columns.offsets[OF_B] + from, there, first, length,
                        panel + at * WIDTH * PLANES * length);
        }
        for (row = rows[0]; row < rows[1]; row += BLOCK_ROWS) {
            int height = (int)(rows[1] - row < BLOCK_ROWS ? rows[1] - row : BLOCK_ROWS);
            if (length > 0)
                NAMED(pack)(plan, OF_A, call->base[OF_A], plan->rows.offsets[OF_A] + row, height, first, length, rows_panel);
            for (at = 0; at < slivers; at++) {
                int64_t from = columns[0] + at * WIDTH;
                int there = (int)(columns[1] - from < WIDTH ? columns[1] - from : WIDTH);
                NAMED(multiply)(length, rows_panel, panel + at * WIDTH * PLANES * length, tile, first > 0);
                for (line = 0; line < height && last; line++)
                    NAMED(finish)(plan, call, plan->rows.offsets[OF_C][row + line], plan->columns.offsets[OF_C] + from,
                                  plan->rows.offsets[OF_D][row + line], plan->columns.offsets[OF_D] + from, there,
                                  tile + line * WIDTH, tile + (BLOCK_ROWS + line) * WIDTH);
                tile += count > 1 ? BLOCK_ROWS * WIDTH * PLANES : 0;
            }
        }
        first += length;
    } while (first < plan->k.count);
}

/* Elements of an operand, summed over the modes that it has alone. */
static void NAMED(gather)(
    const struct product *plan, int which, const char *from, const int64_t *offsets, bool together, int count, REAL *to)
{
    const struct table *alone = &plan->alone[which];
    int64_t each;
    for (each = 0; each < alone->count; each++)
        NAMED(fetch)(plan->types[which], plan->conjugated[which], from + alone->offsets[which][each], offsets, together,
                     count, to, to + SPAN, each > 0);
}

static inline void NAMED(clear)(int count, REAL *sums)
{
    int at;
    for (at = 0; at < count; at++)
        sums[at] = sums[SPAN + at] = 0;
}

static inline void NAMED(add_products)(const REAL *x, const REAL *y, int count, REAL *sums)
{
    int at;
    for (at = 0; at < count; at++) {
#if COMPLEX
        sums[at] += x[at] * y[at] - x[SPAN + at] * y[SPAN + at];
        sums[SPAN + at] += x[at] * y[SPAN + at] + x[SPAN + at] * y[at];
#else
        sums[at] += x[at] * y[at];
#endif
    }
}

/* Each element a sum of products of its own, for SPAN indices of the mode of `lanes` together. */
static void NAMED(nest)(const struct product *plan, const struct call *call, const int64_t range[2])
{
    const struct table *rows = &plan->rows, *columns = &plan->columns;
    int64_t offsets[TENSORS][SPAN], at, row, column, k;
    bool together[TENSORS];
    struct call own = *call;
    int which, lane;
    for (which = 0; which < TENSORS; which++) {
        for (lane = 0; lane < SPAN; lane++)
            offsets[which][lane] = lane * plan->lanes.steps[which];
        together[which] = plan->lanes.steps[which] == size_of_(plan->types[which]);
    }
    for (at = range[0]; at < range[1]; at += SPAN) {
        int count = (int)(range[1] - at < SPAN ? range[1] - at : SPAN);
        for (which = 0; which < TENSORS; which++)
            own.base[which] = call->base[which] + (call->base[which] ? at * plan->lanes.steps[which] : 0);
        for (row = 0; row < rows->count; row++)
            for (column = 0; column < columns->count; column++) {
                REAL sums[2 * SPAN], x[2 * SPAN], y[2 * SPAN];
                NAMED(clear)(count, sums);
                for (k = 0; k < plan->k.count; k++) {
                    NAMED(gather)(plan, OF_A, own.base[OF_A] + rows->offsets[OF_A][row] + plan->k.offsets[OF_A][k],
                                  offsets[OF_A], together[OF_A], count, x);
                    NAMED(gather)(plan, OF_B, own.base[OF_B] + columns->offsets[OF_B][column] + plan->k.offsets[OF_B][k],
                                  offsets[OF_B], together[OF_B], count, y);
                    NAMED(add_products)(x, y, count, sums);
                }
                NAMED(finish)(plan, &own, rows->offsets[OF_C][row] + columns->offsets[OF_C][column], offsets[OF_C],
                              rows->offsets[OF_D][row] + columns->offsets[OF_D][column], offsets[OF_D], count, sums,
                              sums + SPAN);
            }
    }
}

/* One row: each column's sum by itself, SPAN products of it together. */
static void NAMED(dots)(const struct product *plan, const struct call *call, const int64_t range[2])
{
    const int64_t *of_a = plan->k.offsets[OF_A], *of_b = plan->k.offsets[OF_B], *of_columns = plan->columns.offsets[OF_B];
    bool a_runs = side_by_side(of_a, plan->k.count, size_of_(plan->types[OF_A]));
    bool b_runs = side_by_side(of_b, plan->k.count, size_of_(plan->types[OF_B]));
    int64_t column, k;
    for (column = range[0]; column < range[1]; column++) {
        REAL sums[2 * SPAN], x[2 * SPAN], y[2 * SPAN];
        int held = plan->k.count >= SPAN ? SPAN : plan->k.count > 0 ? (int)plan->k.count : 1, at, plane;
        NAMED(clear)(held, sums);
        for (k = 0; k < plan->k.count; k += SPAN) {
            int count = (int)(plan->k.count - k < SPAN ? plan->k.count - k : SPAN);
            NAMED(gather)(plan, OF_A, call->base[OF_A], of_a + k, a_runs, count, x);
            NAMED(gather)(plan, OF_B, call->base[OF_B] + of_columns[column], of_b + k, b_runs,
                          count, y);
            NAMED(add_products)(x, y, count, sums);
        }
        for (plane = 0; plane < PLANES; plane++)
            for (at = 1; at < held; at++)
                sums[plane * SPAN] += sums[plane * SPAN + at];
        NAMED(finish)(plan, call, plan->columns.offsets[OF_C][column], ZERO, plan->columns.offsets[OF_D][column], ZERO, 1,
                      sums, sums + SPAN);
    }
}

static const struct kernel NAMED(kernel) = {BLOCK_ROWS, WIDTH, NAMED(workspace), NAMED(block), NAMED(nest), NAMED(dots)};

#undef vec
#undef SPAN
#undef BLOCK_ROWS
#undef WIDTH
#undef LANES
#undef PLANES
