/* Antialiased resampling of rows of pixels, four bytes a pixel.
 *
 * A triangle as wide as two pixels of the result, or of the source where that is the coarser one:
 * what Pillow calls BILINEAR and torch `interpolate(mode="bilinear", antialias=True)`. All
 * arithmetic is in integers of 16 bits, so that every machine gives the same pixels: in plain C,
 * with SSE2, and with AVX2 where the processor has it (resample_avx2.c).
 */

#ifndef PENSTOCK_RESAMPLE_H
#define PENSTOCK_RESAMPLE_H

#include <stddef.h>
#include <stdint.h>

enum {
    CHANNELS = 3,
    LANES = 4,    /* elements of a pixel: red, green, blue and one that is not used */
    PADDING = 128 /* elements behind a row that are read or written, and mean nothing */
};

typedef struct {
    int taps;           /* places for weights of each result, an even number */
    int *first;         /* [count] the first source pixel of each result */
    int *used;          /* [count] how many of its taps are not nought */
    uint16_t *weights;  /* [count][taps], in 1/65536 */
    uint16_t *spread;   /* the same once a lane; see spread_of; NULL unless it is a filter across */
    uint16_t *rounding; /* [count][LANES], what is added to a result's sum; likewise */
} Filter;

typedef enum { DOWN, ACROSS, MIRRORED } Direction; /* MIRRORED: ACROSS, results from right to left */

/* The source pixels low .. high-1, of `size`, that `count` results over [start, end) are made of;
 * `inside`: without those beside it. */
void set_bounds(double start, double end, int count, int inside, int size, int *low, int *high);

/* Weights for `count` results over source [start, end), of which pixels low .. high-1 exist.
 * Returns 0, or -1 without memory. */
int make_filter(Filter *filter, double start, double end, int low, int high, int count,
                Direction direction);
void free_filter(Filter *filter);

/* What a product loses that is cut to its upper half, on average over so many of them. */
static inline int lost(int taps) { return taps / 2; }

/* The weights of two taps, the first an even one, of a result: [2][LANES]. Those of the results
 * with numbers 0 and 1, 2 and 3 ... stand side by side. */
static inline const uint16_t *spread_of(const Filter *across, ptrdiff_t result, int tap)
{
    ptrdiff_t pair = result / 2 * (across->taps / 2) + tap / 2;
    return across->spread + (pair * 2 + result % 2) * 2 * LANES;
}

/* `count` pixels of CHANNELS bytes become pixels of LANES. */
void widen(const uint8_t *from, int count, uint8_t *to);

/* sum[i] = sum of rows[k][i] * weights[k], in 1/256, for i below `count` and up to PADDING more. */
void add_rows(const uint8_t *const *rows, const uint16_t *weights, int taps, int count,
              uint16_t *sum);

/* `count` pixels from a row in 1/256, whose first pixel has the number `low`. */
void resample_row(const uint16_t *row, int low, const Filter *across, int count, uint8_t *pixels);

/* The channels of `count` pixels side by side, `plane` elements apart; floats as
 * value * scale + bias. `past_cache` is for results that are too many for a cache anyhow: they are
 * written without being read first, if they are aligned, and `have_written` ends such writing. */
void write_floats(const uint8_t *pixels, int count, const float *scale, const float *bias, float *to,
                  ptrdiff_t plane, int past_cache);
void have_written(void);
void write_bytes(const uint8_t *pixels, int count, uint8_t *to, ptrdiff_t plane);

/* `count` pixels of CHANNELS bytes. */
void narrow(const uint8_t *pixels, int count, uint8_t *to);

#endif
