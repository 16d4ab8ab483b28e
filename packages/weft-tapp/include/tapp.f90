! TAPP for Fortran: the functions of tapp.h, with numbers of ISO_C_BINDING. Modes are in Fortran's order where strides say so.
module tapp
  use iso_c_binding
  implicit none
  integer(c_int), parameter :: TAPP_F32 = 0, TAPP_F64 = 1, TAPP_C32 = 2, TAPP_C64 = 3, TAPP_F16 = 4, TAPP_BF16 = 5
  integer(c_int), parameter :: TAPP_DEFAULT_PREC = -1, TAPP_IDENTITY = 0, TAPP_CONJUGATE = 1

  interface
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

    ! Tensors and factors are addresses: c_loc of a target; status may be c_null_ptr.
    function tapp_execute_product(plan, executor, status, alpha, a, b, beta, c, d) bind(c, name="TAPP_execute_product")
      import
      integer(c_int) :: tapp_execute_product
      integer(c_intptr_t), value :: plan, executor
      type(c_ptr), value :: status, alpha, a, b, beta, c, d
    end function

    function tapp_explain_error(error, size, message) bind(c, name="TAPP_explain_error")
      import
      integer(c_size_t) :: tapp_explain_error
      integer(c_int), value :: error
      integer(c_size_t), value :: size
      character(kind=c_char), intent(out) :: message(*)
    end function
  end interface
end module
