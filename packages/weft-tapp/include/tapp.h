/* TAPP, the Tensor Algebra Processing Primitives, as libweft_tapp.so has them.
 *
 * A tensor is described by a type, extents, and strides in elements; a product D = alpha A B + beta C by four
 * descriptions with a label for each mode. It is planned once and executed on any addresses. Names, types and values are
 * those of the interface (https://github.com/TAPPorg), so that a program may be compiled with its headers as well.
 */
#ifndef WEFT_TAPP_H
#define WEFT_TAPP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TAPP_EXPORT __attribute__((visibility("default")))
#define TAPP_IN_PLACE NULL /* as C: D, whose values are read before they are written */

typedef int TAPP_error;    /* 0, or what TAPP_explain_error says in words */
typedef int TAPP_datatype; /* of a tensor's elements */
typedef int TAPP_prectype; /* of the sums */
typedef int TAPP_element_op;
typedef intptr_t TAPP_handle;
typedef intptr_t TAPP_executor;
typedef intptr_t TAPP_status;
typedef intptr_t TAPP_tensor_info;
typedef intptr_t TAPP_tensor_product;

enum { TAPP_F32 = 0, TAPP_F64 = 1, TAPP_C32 = 2, TAPP_C64 = 3, TAPP_F16 = 4, TAPP_BF16 = 5 };
enum {
    TAPP_DEFAULT_PREC = -1, /* double where a tensor has elements of it, else float */
    TAPP_F32F32_ACCUM_F32 = 0,
    TAPP_F64F64_ACCUM_F64 = 1,
    TAPP_F16F16_ACCUM_F16 = 4,
    TAPP_F16F16_ACCUM_F32 = 5,
    TAPP_BF16BF16_ACCUM_F32 = 6
};
enum { TAPP_IDENTITY = 0, TAPP_CONJUGATE = 1 };

TAPP_EXPORT bool TAPP_check_success(TAPP_error error);

/* Write at most `size` - 1 characters of the error's sentence and a 0; their number. With a size of 0, its length. */
TAPP_EXPORT size_t TAPP_explain_error(TAPP_error error, size_t size, char *message);

TAPP_EXPORT TAPP_error TAPP_create_handle(TAPP_handle *handle);
TAPP_EXPORT TAPP_error TAPP_destroy_handle(TAPP_handle handle);

/* Threads are OpenMP's (OMP_NUM_THREADS); 0 serves as well as an executor that is made. */
TAPP_EXPORT TAPP_error TAPP_create_executor(TAPP_executor *executor);
TAPP_EXPORT TAPP_error TAPP_destroy_executor(TAPP_executor executor);
TAPP_EXPORT TAPP_error TAPP_destroy_status(TAPP_status status);

/* Extents of 0 and more, strides of any sign; a tensor without modes is one element. What they point to is copied. */
TAPP_EXPORT TAPP_error TAPP_create_tensor_info(
    TAPP_tensor_info *info, TAPP_datatype type, int nmode, const int64_t *extents, const int64_t *strides);
TAPP_EXPORT TAPP_error TAPP_destroy_tensor_info(TAPP_tensor_info info);
TAPP_EXPORT int TAPP_get_nmodes(TAPP_tensor_info info);
TAPP_EXPORT TAPP_error TAPP_set_nmodes(TAPP_tensor_info info, int nmode);
TAPP_EXPORT void TAPP_get_extents(TAPP_tensor_info info, int64_t *extents);
TAPP_EXPORT TAPP_error TAPP_set_extents(TAPP_tensor_info info, const int64_t *extents);
TAPP_EXPORT void TAPP_get_strides(TAPP_tensor_info info, int64_t *strides);
TAPP_EXPORT TAPP_error TAPP_set_strides(TAPP_tensor_info info, const int64_t *strides);

/* Plan D = op_D(alpha op_A(A) op_B(B) + beta op_C(C)).
 *
 * Each idx_ has one label for each mode. A label of D stands in A or B; those that D lacks are summed over, those of one
 * operand alone too; a label twice in one tensor is its diagonal. C has the labels of D in D's order. The description is
 * read now: infos may be destroyed after. A product that cannot be computed is said here and again by each execution.
 */
TAPP_EXPORT TAPP_error TAPP_create_tensor_product(
    TAPP_tensor_product *plan, TAPP_handle handle, TAPP_element_op op_A, TAPP_tensor_info A, const int64_t *idx_A,
    TAPP_element_op op_B, TAPP_tensor_info B, const int64_t *idx_B, TAPP_element_op op_C, TAPP_tensor_info C,
    const int64_t *idx_C, TAPP_element_op op_D, TAPP_tensor_info D, const int64_t *idx_D, TAPP_prectype prec);
TAPP_EXPORT TAPP_error TAPP_destroy_tensor_product(TAPP_tensor_product plan);

/* alpha and beta are of D's type. C may be D, or TAPP_IN_PLACE where it lies as D does; with a beta of 0 it is not read.
 * A D that shares memory with A, B or another C is an error. `status` may be NULL. When an error comes back nothing was
 * written, in none of the batches: they are checked before the first is computed, each by itself. */
TAPP_EXPORT TAPP_error TAPP_execute_product(
    TAPP_tensor_product plan, TAPP_executor executor, TAPP_status *status, const void *alpha, const void *A,
    const void *B, const void *beta, const void *C, void *D);
TAPP_EXPORT TAPP_error TAPP_execute_batched_product(
    TAPP_tensor_product plan, TAPP_executor executor, TAPP_status *status, int batches, const void *alpha,
    const void **A, const void **B, const void *beta, const void **C, void **D);

#ifdef __cplusplus
}
#endif
#endif
