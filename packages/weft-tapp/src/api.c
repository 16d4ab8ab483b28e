/* Errors, handles and descriptions of tensors. */
#include <stdlib.h>
#include <string.h>

#include "product.h"

/* The first fourteen numbers are those of TAPP's reference implementation. */
static const char *const SENTENCES[ERRORS] = {
    [SUCCESS] = "Success.",
    [EXTENTS_AB] = "A label that A and B share has two extents.",
    [EXTENTS_AD] = "A label that A and D share has two extents.",
    [EXTENTS_BD] = "A label that B and D share has two extents.",
    [ONLY_IN_D] = "D has a label that neither A nor B has.",
    [RANKS_CD] = "C and D have different numbers of modes.",
    [LABELS_CD] = "C does not have the labels of D in D's order.",
    [EXTENTS_CD] = "A label that C and D share has two extents.",
    [OVERLAP_D] = "Two elements of D lie at one address.",
    [TWICE_A] = "A label that stands twice in A has two extents.",
    [TWICE_B] = "A label that stands twice in B has two extents.",
    [TWICE_D] = "A label that stands twice in D has two extents.",
    [NO_C] = "beta is not zero and there is no C: it is NULL, and does not lie as D does.",
    [NEGATIVE_RANK] = "A tensor has a negative number of modes.",
    [NEGATIVE_EXTENT] = "An extent is negative.",
    [NO_TYPE] = "There is no such type of elements.",
    [NO_PRECISION] = "There is no such precision.",
    [NO_OPERATION] = "There is no such operation on elements.",
    [NO_MEMORY] = "There is not enough memory.",
    [NO_ARGUMENT] = "An argument that is needed is NULL.",
    [COMPLEX_TO_REAL] = "A, B or C is complex and D is real.",
    [MANY_MODES] = "A tensor has more than 64 modes.",
    [OVERLAP_OPERAND] = "D overlaps A or B, or a C that does not lie as D does.",
    [NEGATIVE_BATCHES] = "The number of batches is negative.",
};

bool TAPP_check_success(TAPP_error error) { return error == SUCCESS; }

size_t TAPP_explain_error(TAPP_error error, size_t size, char *message)
{
    const char *text = error >= 0 && error < ERRORS ? SENTENCES[error] : "There is no error of this number.";
    size_t length = strlen(text);
    if (size == 0)
        return length;
    if (length > size - 1)
        length = size - 1;
    memcpy(message, text, length);
    message[length] = 0;
    return length;
}

static TAPP_error made(intptr_t *place)
{
    if (place == NULL)
        return NO_ARGUMENT;
    *place = (intptr_t)malloc(1);
    return *place ? SUCCESS : NO_MEMORY;
}

static TAPP_error gone(intptr_t place)
{
    free((void *)place);
    return SUCCESS;
}

TAPP_error TAPP_create_handle(TAPP_handle *handle) { return made(handle); }
TAPP_error TAPP_destroy_handle(TAPP_handle handle) { return gone(handle); }
TAPP_error TAPP_create_executor(TAPP_executor *executor) { return made(executor); }
TAPP_error TAPP_destroy_executor(TAPP_executor executor) { return gone(executor); }
TAPP_error TAPP_destroy_status(TAPP_status status) { return status == 0 ? SUCCESS : NO_ARGUMENT; }

int64_t size_of(TAPP_datatype type)
{
    static const int64_t sizes[] = {4, 8, 8, 16, 2, 2};
    return sizes[type];
}

bool type_is_complex(TAPP_datatype type) { return type == TAPP_C32 || type == TAPP_C64; }
bool type_is_wide(TAPP_datatype type) { return type == TAPP_F64 || type == TAPP_C64; }

static TAPP_error set_extents(struct tensor *tensor, const int64_t *extents)
{
    int at;
    if (tensor->rank > 0 && extents == NULL)
        return NO_ARGUMENT;
    for (at = 0; at < tensor->rank; at++)
        if (extents[at] < 0)
            return NEGATIVE_EXTENT;
    if (tensor->rank > 0)
        memcpy(tensor->extents, extents, sizeof(int64_t) * (size_t)tensor->rank);
    return SUCCESS;
}

TAPP_error TAPP_create_tensor_info(
    TAPP_tensor_info *info, TAPP_datatype type, int nmode, const int64_t *extents, const int64_t *strides)
{
    struct tensor *tensor;
    TAPP_error error;
    if (info == NULL || (nmode > 0 && strides == NULL))
        return NO_ARGUMENT;
    if (nmode < 0 || nmode > MODES)
        return nmode < 0 ? NEGATIVE_RANK : MANY_MODES;
    if (type < TAPP_F32 || type > TAPP_BF16)
        return NO_TYPE;
    tensor = calloc(1, sizeof *tensor);
    if (tensor == NULL)
        return NO_MEMORY;
    tensor->type = type;
    tensor->rank = nmode;
    error = set_extents(tensor, extents);
    if (error == SUCCESS)
        error = TAPP_set_strides((TAPP_tensor_info)tensor, strides);
    if (error != SUCCESS)
        free(tensor);
    else
        *info = (TAPP_tensor_info)tensor;
    return error;
}

TAPP_error TAPP_destroy_tensor_info(TAPP_tensor_info info) { return gone(info); }
int TAPP_get_nmodes(TAPP_tensor_info info) { return ((struct tensor *)info)->rank; }

/* New modes have an extent of 1. */
TAPP_error TAPP_set_nmodes(TAPP_tensor_info info, int nmode)
{
    struct tensor *tensor = (struct tensor *)info;
    if (nmode < 0 || nmode > MODES)
        return nmode < 0 ? NEGATIVE_RANK : MANY_MODES;
    for (; tensor->rank < nmode; tensor->rank++) {
        tensor->extents[tensor->rank] = 1;
        tensor->strides[tensor->rank] = 0;
    }
    tensor->rank = nmode;
    return SUCCESS;
}

void TAPP_get_extents(TAPP_tensor_info info, int64_t *extents)
{
    struct tensor *tensor = (struct tensor *)info;
    memcpy(extents, tensor->extents, sizeof(int64_t) * (size_t)tensor->rank);
}

TAPP_error TAPP_set_extents(TAPP_tensor_info info, const int64_t *extents)
{
    return set_extents((struct tensor *)info, extents);
}

void TAPP_get_strides(TAPP_tensor_info info, int64_t *strides)
{
    struct tensor *tensor = (struct tensor *)info;
    memcpy(strides, tensor->strides, sizeof(int64_t) * (size_t)tensor->rank);
}

TAPP_error TAPP_set_strides(TAPP_tensor_info info, const int64_t *strides)
{
    struct tensor *tensor = (struct tensor *)info;
    if (tensor->rank > 0 && strides == NULL)
        return NO_ARGUMENT;
    if (tensor->rank > 0)
        memcpy(tensor->strides, strides, sizeof(int64_t) * (size_t)tensor->rank);
    return SUCCESS;
}
