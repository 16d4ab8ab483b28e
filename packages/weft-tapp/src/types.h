/* kernel.h for the four types of sums, at the level that kernels.c has defined. */
#define REAL float
#define COMPLEX 0
#define TYPE f32
#include "kernel.h"
#undef TYPE
#undef REAL
#define REAL double
#define TYPE f64
#include "kernel.h"
#undef TYPE
#undef COMPLEX
#define COMPLEX 1
#define TYPE c64
#include "kernel.h"
#undef TYPE
#undef REAL
#define REAL float
#define TYPE c32
#include "kernel.h"
#undef TYPE
#undef REAL
#undef COMPLEX
