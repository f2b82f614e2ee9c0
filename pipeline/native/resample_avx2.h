/* What resample.c does, in the same order and to the bit, sixteen numbers at a time. */

#ifndef PENSTOCK_RESAMPLE_AVX2_H
#define PENSTOCK_RESAMPLE_AVX2_H

#include "resample.h"

/* PENSTOCK_PLAIN leaves vectors to the compiler; tests compare the ways with it. */
#if defined(__SSE2__) && !defined(PENSTOCK_PLAIN)
#define PENSTOCK_SSE2
#if defined(__x86_64__) && defined(__GNUC__) && !defined(PENSTOCK_NO_AVX2)
#define PENSTOCK_AVX2

static inline int has_avx2(void) { return __builtin_cpu_supports("avx2"); }

void widen_avx2(const uint8_t *from, int count, uint8_t *to);
void add_rows_avx2(const uint8_t *const *rows, const uint16_t *weights, int taps, int count,
                   uint16_t *sum);
void resample_row_avx2(const uint16_t *row, int low, const Filter *across, int count,
                       uint8_t *pixels);
void write_floats_avx2(const uint8_t *pixels, int count, const float *scale, const float *bias,
                       float *to, ptrdiff_t plane, int past_cache);

#endif
#endif
#endif
