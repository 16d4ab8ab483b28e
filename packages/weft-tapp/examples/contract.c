/* D[i, j] = sum over k of A[i, k] B[k, j], once and once more in place; and what an error says.
 *
 *   cc contract.c -I../include -L../build -lweft_tapp -Wl,-rpath,../build && ./a.out
 */
#include <stdio.h>
#include <stdlib.h>

#include "tapp.h"

static void check(TAPP_error error, const char *what)
{
    char sentence[128];
    if (TAPP_check_success(error))
        return;
    TAPP_explain_error(error, sizeof sentence, sentence);
    fprintf(stderr, "%s: %s\n", what, sentence);
    exit(1);
}

int main(void)
{
    const int64_t of_a[] = {2, 3}, of_b[] = {3, 2}, of_d[] = {2, 2};
    const int64_t by_rows_a[] = {3, 1}, by_rows_b[] = {2, 1}, by_rows_d[] = {2, 1};
    const int64_t ik[] = {'i', 'k'}, kj[] = {'k', 'j'}, ij[] = {'i', 'j'};
    double a[] = {1, 2, 3, 4, 5, 6}, b[] = {1, 0, 0, 1, 2, 2}, d[4], one = 1, zero = 0;
    TAPP_tensor_info info_a, info_b, info_d;
    TAPP_tensor_product plan;
    TAPP_error error;

    check(TAPP_create_tensor_info(&info_a, TAPP_F64, 2, of_a, by_rows_a), "A");
    check(TAPP_create_tensor_info(&info_b, TAPP_F64, 2, of_b, by_rows_b), "B");
    check(TAPP_create_tensor_info(&info_d, TAPP_F64, 2, of_d, by_rows_d), "D");
    check(TAPP_create_tensor_product(&plan, 0, TAPP_IDENTITY, info_a, ik, TAPP_IDENTITY, info_b, kj, TAPP_IDENTITY, info_d,
                                     ij, TAPP_IDENTITY, info_d, ij, TAPP_DEFAULT_PREC), "the product");
    check(TAPP_execute_product(plan, 0, NULL, &one, a, b, &zero, NULL, d), "the first execution");
    check(TAPP_execute_product(plan, 0, NULL, &one, a, b, &one, TAPP_IN_PLACE, d), "the second, added to the first");
    printf("%g %g %g %g\n", d[0], d[1], d[2], d[3]);
    TAPP_destroy_tensor_product(plan);

    error = TAPP_create_tensor_product(&plan, 0, TAPP_IDENTITY, info_a, ik, TAPP_IDENTITY, info_b, ij, TAPP_IDENTITY, info_d,
                                       ij, TAPP_IDENTITY, info_d, ij, TAPP_DEFAULT_PREC);
    if (!TAPP_check_success(error)) {
        char sentence[128];
        TAPP_explain_error(error, sizeof sentence, sentence);
        printf("%s\n", sentence);
    }
    TAPP_destroy_tensor_product(plan);
    TAPP_destroy_tensor_info(info_a);
    TAPP_destroy_tensor_info(info_b);
    TAPP_destroy_tensor_info(info_d);
    return 0;
}
