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

/* Sixteen bytes as numbers in 1/256. */
AVX2 static inline __m256i sixteen(const uint8_t *from)
{
    return _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)from)), 8);
}

AVX2 void add_rows_avx2(const uint8_t *const *rows, const uint16_t *weights, int taps, int count,
                        uint16_t *sum)
{
    const __m256i start = _mm256_set1_epi16((short)lost(taps));

    for (ptrdiff_t at = 0; at < count; at += STRIP) {
        __m256i low = start, high = start;
        for (int tap = 0; tap < taps; tap++) {
            const __m256i weight = _mm256_set1_epi16((short)weights[tap]);
            const uint8_t *row = rows[tap] + at;
            low = _mm256_add_epi16(low, _mm256_mulhi_epu16(sixteen(row), weight));
            high = _mm256_add_epi16(high, _mm256_mulhi_epu16(sixteen(row + STRIP / 2), weight));
        }
        _mm256_storeu_si256((__m256i *)(sum + at), low);
        _mm256_storeu_si256((__m256i *)(sum + at + STRIP / 2), high);
    }
}

/* The sums of results x and x + 1: of even taps, of odd ones, and the same of the next. */
AVX2 static inline __m256i sums_of(const uint16_t *row, const Filter *across, ptrdiff_t x)
{
    const uint16_t *one = row + (ptrdiff_t)across->first[x] * LANES;
    const uint16_t *next = row + (ptrdiff_t)across->first[x + 1] * LANES;
    const uint16_t *weights = across->spread + x * across->taps * LANES;
    const uint16_t *others = weights + across->taps * LANES;
    const int *used = across->used + x;
    int taps = used[0] > used[1] ? used[0] : used[1];
    __m256i sum = _mm256_mulhi_epu16(both(one, next), both(weights, others));

    for (int tap = 2; tap < taps; tap += 2)
        sum = _mm256_add_epi16(sum, _mm256_mulhi_epu16(both(one + tap * LANES, next + tap * LANES),
                                                       both(weights + tap * LANES,
                                                            others + tap * LANES)));
    return sum;
}

/* The same where there are two taps, whose weights lie side by side. */
AVX2 static inline __m256i sums_of_two(const uint16_t *row, const Filter *across, ptrdiff_t x)
{
    const __m256i values = both(row + (ptrdiff_t)across->first[x] * LANES,
                                row + (ptrdiff_t)across->first[x + 1] * LANES);
    return _mm256_mulhi_epu16(
        values, _mm256_loadu_si256((const __m256i *)(across->spread + x * 2 * LANES)));
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

AVX2 void resample_row_avx2(const uint16_t *row, int low, const Filter *across, int count,
                            uint8_t *pixels)
{
    const uint16_t *rounding = across->rounding;

    row -= (ptrdiff_t)low * LANES;
    if (across->taps == 2)
        for (ptrdiff_t x = 0; x + EIGHT <= count; x += EIGHT)
            put(sums_of_two(row, across, x), sums_of_two(row, across, x + 2),
                sums_of_two(row, across, x + 4), sums_of_two(row, across, x + 6),
                rounding + x * LANES, pixels + x * LANES);
    else
        for (ptrdiff_t x = 0; x + EIGHT <= count; x += EIGHT)
            put(sums_of(row, across, x), sums_of(row, across, x + 2), sums_of(row, across, x + 4),
                sums_of(row, across, x + 6), rounding + x * LANES, pixels + x * LANES);
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
