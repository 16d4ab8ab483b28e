! TAPP for Fortran: all functions of tapp.h, with numbers of ISO_C_BINDING. Modes are in Fortran's order where strides say so.
!
! tapp.h says what each does. Tensors and factors are addresses, c_loc of a target; of a batched product they are the
! addresses of arrays of addresses. A status or C that is not wanted is c_null_ptr.
module tapp
  use iso_c_binding
  implicit none
  integer(c_int), parameter :: TAPP_F32 = 0, TAPP_F64 = 1, TAPP_C32 = 2, TAPP_C64 = 3, TAPP_F16 = 4, TAPP_BF16 = 5
  integer(c_int), parameter :: TAPP_DEFAULT_PREC = -1, TAPP_F32F32_ACCUM_F32 = 0, TAPP_F64F64_ACCUM_F64 = 1
  integer(c_int), parameter :: TAPP_F16F16_ACCUM_F16 = 4, TAPP_F16F16_ACCUM_F32 = 5, TAPP_BF16BF16_ACCUM_F32 = 6
  integer(c_int), parameter :: TAPP_IDENTITY = 0, TAPP_CONJUGATE = 1
  type(c_ptr), parameter :: TAPP_IN_PLACE = c_null_ptr

  interface
    function tapp_check_success(error) bind(c, name="TAPP_check_success")
      import
      logical(c_bool) :: tapp_check_success
      integer(c_int), value :: error
    end function

    function tapp_explain_error(error, size, message) bind(c, name="TAPP_explain_error")
      import
      integer(c_size_t) :: tapp_explain_error
      integer(c_int), value :: error
      integer(c_size_t), value :: size
      character(kind=c_char), intent(out) :: message(*)
    end function

    function tapp_create_handle(handle) bind(c, name="TAPP_create_handle")
      import
      integer(c_int) :: tapp_create_handle
      integer(c_intptr_t), intent(out) :: handle
    end function

    function tapp_destroy_handle(handle) bind(c, name="TAPP_destroy_handle")
      import
      integer(c_int) :: tapp_destroy_handle
      integer(c_intptr_t), value :: handle
    end function

    function tapp_create_executor(executor) bind(c, name="TAPP_create_executor")
      import
      integer(c_int) :: tapp_create_executor
      integer(c_intptr_t), intent(out) :: executor
    end function

    function tapp_destroy_executor(executor) bind(c, name="TAPP_destroy_executor")
      import
      integer(c_int) :: tapp_destroy_executor
      integer(c_intptr_t), value :: executor
    end function

    function tapp_destroy_status(status) bind(c, name="TAPP_destroy_status")
      import
      integer(c_int) :: tapp_destroy_status
      integer(c_intptr_t), value :: status
    end function

    function tapp_create_tensor_info(info, kind, nmode, extents, strides) bind(c, name="TAPP_create_tensor_info")
      import
      integer(c_int) :: tapp_create_tensor_info
      integer(c_intptr_t), intent(out) :: info
      integer(c_int), value :: kind, nmode
      integer(c_int64_t), intent(in) :: extents(*), strides(*)
    end function

    function tapp_destroy_tensor_info(info) bind(c, name="TAPP_destroy_tensor_info")
      import
      integer(c_int) :: tapp_destroy_tensor_info
      integer(c_intptr_t), value :: info
    end function

    function tapp_get_nmodes(info) bind(c, name="TAPP_get_nmodes")
      import
      integer(c_int) :: tapp_get_nmodes
      integer(c_intptr_t), value :: info
    end function

    function tapp_set_nmodes(info, nmode) bind(c, name="TAPP_set_nmodes")
      import
      integer(c_int) :: tapp_set_nmodes
      integer(c_intptr_t), value :: info
      integer(c_int), value :: nmode
    end function

    subroutine tapp_get_extents(info, extents) bind(c, name="TAPP_get_extents")
      import
      integer(c_intptr_t), value :: info
      integer(c_int64_t), intent(out) :: extents(*)
    end subroutine

    function tapp_set_extents(info, extents) bind(c, name="TAPP_set_extents")
      import
      integer(c_int) :: tapp_set_extents
      integer(c_intptr_t), value :: info
      integer(c_int64_t), intent(in) :: extents(*)
    end function

    subroutine tapp_get_strides(info, strides) bind(c, name="TAPP_get_strides")
      import
      integer(c_intptr_t), value :: info
      integer(c_int64_t), intent(out) :: strides(*)
    end subroutine

    function tapp_set_strides(info, strides) bind(c, name="TAPP_set_strides")
      import
      integer(c_int) :: tapp_set_strides
      integer(c_intptr_t), value :: info
      integer(c_int64_t), intent(in) :: strides(*)
    end function

    function tapp_create_tensor_product(plan, handle, op_a, a, idx_a, op_b, b, idx_b, op_c, c, idx_c, op_d, d, idx_d, &
        prec) bind(c, name="TAPP_create_tensor_product")
      import
      integer(c_int) :: tapp_create_tensor_product
      integer(c_intptr_t), intent(out) :: plan
      integer(c_intptr_t), value :: handle, a, b, c, d
      integer(c_int), value :: op_a, op_b, op_c, op_d, prec
      integer(c_int64_t), intent(in) :: idx_a(*), idx_b(*), idx_c(*), idx_d(*)
    end function

    function tapp_destroy_tensor_product(plan) bind(c, name="TAPP_destroy_tensor_product")
      import
      integer(c_int) :: tapp_destroy_tensor_product
      integer(c_intptr_t), value :: plan
    end function

    function tapp_execute_product(plan, executor, status, alpha, a, b, beta, c, d) bind(c, name="TAPP_execute_product")
      import
      integer(c_int) :: tapp_execute_product
      integer(c_intptr_t), value :: plan, executor
      type(c_ptr), value :: status, alpha, a, b, beta, c, d
    end function

    function tapp_execute_batched_product(plan, executor, status, batches, alpha, a, b, beta, c, d) &
        bind(c, name="TAPP_execute_batched_product")
      import
      integer(c_int) :: tapp_execute_batched_product
      integer(c_intptr_t), value :: plan, executor
      integer(c_int), value :: batches
      type(c_ptr), value :: status, alpha, a, b, beta, c, d
    end function
  end interface
end module
