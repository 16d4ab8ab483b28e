! D(i, j, l) = sum over k of conjg(A(k, i)) B(k, j, l), of complex numbers in double precision, threads being OpenMP's; then
! the same for each l by itself, in one call of a plan of matrices.
!
!   gfortran ../include/tapp.f90 contract.f90 -L../build -lweft_tapp -Wl,-rpath,../build && ./a.out
program contract
  use tapp
  implicit none
  integer(c_int64_t), parameter :: m = 5, n = 7, p = 3, k = 11, first = 1
  complex(c_double_complex), target :: a(k, m), b(k, n, p), d(m, n, p), one = (1, 0), zero = (0, 0)
  complex(c_double_complex) :: expected(m, n, p)
  real(c_double) :: parts(k, n, p, 2)
  integer(c_intptr_t) :: handle, executor, info_a, info_b, info_d, plan
  type(c_ptr), target :: of_a(p), of_b(p), of_d(p)
  integer :: l

  call random_number(parts)
  b = cmplx(parts(:, :, :, 1), parts(:, :, :, 2), c_double)
  a = cmplx(parts(:, :m, 1, 2), parts(:, :m, 2, 1), c_double)
  call check(tapp_create_handle(handle))
  call check(tapp_create_executor(executor))
  call check(tapp_create_tensor_info(info_a, TAPP_C64, 2, [k, m], [first, k]))
  call check(tapp_create_tensor_info(info_b, TAPP_C64, 3, [k, n, p], [first, k, k * n]))
  call check(tapp_create_tensor_info(info_d, TAPP_C64, 3, [m, n, p], [first, m, m * n]))
  call check(tapp_create_tensor_product(plan, handle, TAPP_CONJUGATE, info_a, labels("ki"), TAPP_IDENTITY, info_b, &
    labels("kjl"), TAPP_IDENTITY, info_d, labels("ijl"), TAPP_IDENTITY, info_d, labels("ijl"), TAPP_DEFAULT_PREC))
  call check(tapp_execute_product(plan, executor, c_null_ptr, c_loc(one), c_loc(a), c_loc(b), c_loc(zero), c_null_ptr, &
    c_loc(d)))
  do l = 1, p
    expected(:, :, l) = matmul(conjg(transpose(a)), b(:, :, l))
  end do
  if (maxval(abs(d - expected)) > 1e-13) stop 1
  call check(tapp_destroy_tensor_product(plan))
  call check(tapp_set_nmodes(info_b, 2))
  call check(tapp_set_nmodes(info_d, 2))
  call check(tapp_create_tensor_product(plan, handle, TAPP_CONJUGATE, info_a, labels("ki"), TAPP_IDENTITY, info_b, &
    labels("kj"), TAPP_IDENTITY, info_d, labels("ij"), TAPP_IDENTITY, info_d, labels("ij"), TAPP_DEFAULT_PREC))
  of_a = c_loc(a)
  of_b = [(c_loc(b(1, 1, l)), l = 1, int(p))]
  of_d = [(c_loc(d(1, 1, l)), l = 1, int(p))]
  d = 0
  call check(tapp_execute_batched_product(plan, executor, c_null_ptr, int(p, c_int), c_loc(one), c_loc(of_a), c_loc(of_b), &
    c_loc(zero), c_null_ptr, c_loc(of_d)))
  if (maxval(abs(d - expected)) > 1e-13) stop 1
  print "(a)", "the product is that of matmul"
  call check(tapp_destroy_tensor_product(plan))
  call check(tapp_destroy_tensor_info(info_a))
  call check(tapp_destroy_tensor_info(info_b))
  call check(tapp_destroy_tensor_info(info_d))
  call check(tapp_destroy_executor(executor))
  call check(tapp_destroy_handle(handle))

contains

  pure function labels(text)
    character(*), intent(in) :: text
    integer(c_int64_t) :: labels(len(text))
    integer :: at
    labels = [(iachar(text(at:at), c_int64_t), at = 1, len(text))]
  end function

  subroutine check(error)
    integer(c_int), intent(in) :: error
    character(kind=c_char) :: message(128)
    integer(c_size_t) :: length
    if (tapp_check_success(error)) return
    length = tapp_explain_error(error, 128_c_size_t, message)
    print *, message(:length)
    stop 2
  end subroutine
end program
