/* What a planned product is, to the files of this library. */
#ifndef WEFT_PRODUCT_H
#define WEFT_PRODUCT_H

#include "tapp.h"

enum { OF_A, OF_B, OF_C, OF_D, TENSORS };

enum error {
    SUCCESS,
    EXTENTS_AB, EXTENTS_AD, EXTENTS_BD, ONLY_IN_D, RANKS_CD, LABELS_CD, EXTENTS_CD, OVERLAP_D, TWICE_A, TWICE_B, TWICE_D,
    NO_C, NEGATIVE_RANK, NEGATIVE_EXTENT, NO_TYPE, NO_PRECISION, NO_OPERATION, NO_MEMORY, NO_ARGUMENT, COMPLEX_TO_REAL,
    MANY_MODES, OVERLAP_OPERAND, NEGATIVE_BATCHES, ERRORS
};

enum { MODES = 64 }; /* of one tensor, at most */

struct tensor {
    TAPP_datatype type;
    int rank;
    int64_t extents[MODES], strides[MODES];
};

/* A label of a product: its extent, and bytes from one index to the next in each tensor. */
struct mode {
    int64_t label, extent, steps[TENSORS];
};

/* Modes as one: bytes from the first element to each, the last mode fastest; NULL in a tensor that has none of them. */
struct table {
    int64_t count;
    int64_t *offsets[TENSORS];
};

/* What a tensor covers of memory: runs of bytes, at the sums of some steps; bytes from its first element. */
struct cover {
    int count;
    int64_t extents[MODES], steps[MODES]; /* the longest step first */
    int64_t run, first, past;
};

/* A and B are exchanged where that makes D contiguous along `columns`: those are B's, whose vectors are multiplied. */
struct product {
    enum error fault;
    bool wide, is_complex; /* the type of sums */
    bool swapped, in_place; /* whether A and B are exchanged; whether C lies as D does */
    TAPP_datatype types[TENSORS];
    bool conjugated[TENSORS];
    int outer_count;
    struct mode outer[2 * MODES]; /* loops around the rest */
    struct cover covers[TENSORS]; /* A and B as the user has them */
    struct table rows, columns, k;
    struct table alone[2]; /* modes of one operand, summed as it is read */
    struct mode lanes; /* a mode of A, B and D that `nest` goes along */
    int64_t outer_total;
    enum { BLOCKS, NEST, DOTS } way; /* packed; or not, as there is too little for each index of the outer modes */
};

struct call {
    const char *base[TENSORS];
    double alpha[2], beta[2];
    bool adds; /* beta is not 0 */
};

/* A kernel for one type of sums and one level of instructions. */
struct kernel {
    int rows, columns; /* of a register block */
    size_t (*workspace)(const struct product *, int64_t rows, int64_t columns); /* bytes */
    /* Rows and columns from .. to of one index of the outer modes. */
    void (*block)(const struct product *, const struct call *, const int64_t rows[2], const int64_t columns[2], char *);
    /* All of one index of the outer modes, indices of `lanes` from .. to; columns from .. to. */
    void (*nest)(const struct product *, const struct call *, const int64_t lanes[2]);
    void (*dots)(const struct product *, const struct call *, const int64_t columns[2]);
};

bool overlapping(const struct cover *d, const char *at_d, const struct cover *other, const char *at_other);
const struct kernel *kernel_of(bool wide, bool is_complex);
int64_t size_of(TAPP_datatype type);
bool type_is_complex(TAPP_datatype type);
bool type_is_wide(TAPP_datatype type);

#endif
