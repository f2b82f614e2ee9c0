#include "resample_avx2.h"

#include <string.h>

#if defined(PENSTOCK_AVX2)

#include <immintrin.h>

#define AVX2 __attribute__((target("avx2")))

enum { STRIP = 32, EIGHT = 8 };

AVX2 static inline __m256i both(const void *low, const void *high)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)low)),
                                   _mm_loadu_si128((const __m128i *)high), 1);
}

AVX2 void widen_avx2(const uint8_t *from, int count, uint8_t *to)
{
    const __m256i places = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1));
    ptrdiff_t x = 0;

    for (; x + EIGHT + 2 <= count; x += EIGHT) { /* four bytes more than these eight are read */
        const __m256i eight = both(from + x * CHANNELS, from + x * CHANNELS + 12);
        _mm256_storeu_si256((__m256i *)(to + x * LANES), _mm256_shuffle_epi8(eight, places));
    }
    for (; x < count; x++)
        memcpy(to + x * LANES, from + x * CHANNELS, CHANNELS);
}

/* Bytes 0-7 and 16-23 of a strip as numbers in 1/256, times the weight; or 8-15 and 24-31. */
AVX2 static inline __m256i part_low(__m256i strip, __m256i weight)
{
    return _mm256_mulhi_epu16(_mm256_unpacklo_epi8(_mm256_setzero_si256(), strip), weight);
}

AVX2 static inline __m256i part_high(__m256i strip, __m256i weight)
{
    return _mm256_mulhi_epu16(_mm256_unpackhi_epi8(_mm256_setzero_si256(), strip), weight);
}

AVX2 static inline void put_strip(uint16_t *sum, __m256i low, __m256i high)
{
    _mm256_storeu_si256((__m256i *)sum, _mm256_permute2x128_si256(low, high, 0x20));
    _mm256_storeu_si256((__m256i *)(sum + STRIP / 2), _mm256_permute2x128_si256(low, high, 0x31));
}

AVX2 void add_rows_avx2(const uint8_t *const *rows, const uint16_t *weights, int taps, int count,
                        uint16_t *sum)
{
    const __m256i start = _mm256_set1_epi16((short)lost(taps));

    for (ptrdiff_t at = 0; at < count; at += 2 * STRIP) {
        __m256i a = start, b = start, c = start, d = start;
        for (int tap = 0; tap < taps; tap++) {
            const __m256i weight = _mm256_set1_epi16((short)weights[tap]);
            const __m256i *strips = (const __m256i *)(rows[tap] + at);
            const __m256i first = _mm256_loadu_si256(strips);
            const __m256i second = _mm256_loadu_si256(strips + 1);
            a = _mm256_add_epi16(a, part_low(first, weight));
            b = _mm256_add_epi16(b, part_high(first, weight));
            c = _mm256_add_epi16(c, part_low(second, weight));
            d = _mm256_add_epi16(d, part_high(second, weight));
        }
        put_strip(sum + at, a, b);
        put_strip(sum + at + STRIP, c, d);
    }
}

/* Taps `tap` and `tap` + 1 of results x and x + 1, an even one and the next, weighted. */
AVX2 static inline __m256i parts_of(const uint16_t *row, const Filter *across, ptrdiff_t x, int tap)
{
    const uint16_t *from = row + (ptrdiff_t)tap * LANES;
    const __m256i values = both(from + (ptrdiff_t)across->first[x] * LANES,
                                from + (ptrdiff_t)across->first[x + 1] * LANES);

    return _mm256_mulhi_epu16(values, _mm256_loadu_si256((const __m256i *)spread_of(across, x, tap)));
}

/* The sums of results x and x + 1: of even taps, of odd ones, and the same of the next. Taps that a
 * result does not use have no weight; to leave them out would cost more than it saves. */
AVX2 static inline __m256i sums_of(const uint16_t *row, const Filter *across, ptrdiff_t x, int taps)
{
    __m256i sum = parts_of(row, across, x, 0);

    for (int tap = 2; tap < taps; tap += 2)
        sum = _mm256_add_epi16(sum, parts_of(row, across, x, tap));
    return sum;
}

/* Results x, x + 2, x + 1, x + 3 from the sums of x and x + 1, and of x + 2 and x + 3. */
AVX2 static inline __m256i rounded(__m256i sums, __m256i next, const uint16_t *rounding)
{
    const __m256i in_order = _mm256_loadu_si256((const __m256i *)rounding);
    const __m256i sum = _mm256_add_epi16(_mm256_unpacklo_epi64(sums, next),
                                         _mm256_unpackhi_epi64(sums, next));
    return _mm256_srli_epi16(
        _mm256_adds_epu16(sum, _mm256_permute4x64_epi64(in_order, _MM_SHUFFLE(3, 1, 2, 0))), 8);
}

/* Eight pixels in their order from four times two of them. */
AVX2 static inline void put(__m256i first, __m256i second, __m256i third, __m256i fourth,
                            const uint16_t *rounding, uint8_t *to)
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i eight = _mm256_packus_epi16(rounded(first, second, rounding),
                                              rounded(third, fourth, rounding + 4 * LANES));
    _mm256_storeu_si256((__m256i *)to, _mm256_permutevar8x32_epi32(eight, order));
}

AVX2 static inline void resample_all(const uint16_t *row, const Filter *across, int taps, int count,
                                     uint8_t *pixels)
{
    for (ptrdiff_t x = 0; x + EIGHT <= count; x += EIGHT)
        put(sums_of(row, across, x, taps), sums_of(row, across, x + 2, taps),
            sums_of(row, across, x + 4, taps), sums_of(row, across, x + 6, taps),
            across->rounding + x * LANES, pixels + x * LANES);
}

AVX2 void resample_row_avx2(const uint16_t *row, int low, const Filter *across, int count,
                            uint8_t *pixels)
{
    row -= (ptrdiff_t)low * LANES;
    switch (across->taps) { /* a number that the compiler knows saves it the loop */
    case 2:
        resample_all(row, across, 2, count, pixels);
        break;
    case 4:
        resample_all(row, across, 4, count, pixels);
        break;
    default:
        resample_all(row, across, across->taps, count, pixels);
    }
}

AVX2 static inline __m256 scaled(__m256i values, __m256 scale, __m256 bias)
{
    const __m256i byte = _mm256_set1_epi32(255);
    const __m256 floats = _mm256_cvtepi32_ps(_mm256_and_si256(values, byte));
    return _mm256_add_ps(_mm256_mul_ps(floats, scale), bias);
}

AVX2 static inline void put_floats(float *to, __m256 values, int past_cache)
{
    if (past_cache)
        _mm256_stream_ps(to, values);
    else
        _mm256_storeu_ps(to, values);
}

AVX2 void write_floats_avx2(const uint8_t *pixels, int count, const float *scale, const float *bias,
                            float *to, ptrdiff_t plane, int past_cache)
{
    const __m256 red = _mm256_set1_ps(scale[0]), red_bias = _mm256_set1_ps(bias[0]);
    const __m256 green = _mm256_set1_ps(scale[1]), green_bias = _mm256_set1_ps(bias[1]);
    const __m256 blue = _mm256_set1_ps(scale[2]), blue_bias = _mm256_set1_ps(bias[2]);

    past_cache = past_cache && ((uintptr_t)to | (uintptr_t)plane * sizeof *to) % 32 == 0;
    for (ptrdiff_t x = 0; x + EIGHT <= count; x += EIGHT) {
        const __m256i eight = _mm256_loadu_si256((const __m256i *)(pixels + x * LANES));
        put_floats(to + x, scaled(eight, red, red_bias), past_cache);
        put_floats(to + plane + x, scaled(_mm256_srli_epi32(eight, 8), green, green_bias),
                   past_cache);
        put_floats(to + 2 * plane + x, scaled(_mm256_srli_epi32(eight, 16), blue, blue_bias),
                   past_cache);
    }
}

#else

typedef int nothing_without_avx2; /* a file of C may not be empty */

#endif
