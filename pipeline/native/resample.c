#include "resample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { ONE = 65536, PAIR = 2, STRIP = 32 };

static double triangle(double distance) { return distance < 1 ? 1 - distance : 0; }

void set_bounds(double start, double end, int count, int inside, int size, int *low, int *high)
{
    double scale = (end - start) / count, border = inside ? 0 : scale > 1 ? scale : 1;
    double first = floor(start - border), last = ceil(end + border);

    *low = first > 0 ? (int)first : 0;
    *high = last < size ? (int)last : size;
}

/* The weights of one result; they add up to 65535, which stands for one. */
static void weigh(double centre, double radius, int first, int used, uint16_t *weights,
                  double *exact)
{
    double total = 0;
    int left = ONE - 1, largest = 0;

    for (int tap = 0; tap < used; tap++)
        total += exact[tap] = triangle(fabs(first + tap + 0.5 - centre) / radius);
    for (int tap = 0; tap < used; tap++) {
        int weight = total > 0 ? (int)(exact[tap] / total * (ONE - 1)) : 0;
        weights[tap] = (uint16_t)weight;
        left -= weight;
        largest = exact[tap] > exact[largest] ? tap : largest;
    }
    weights[largest] = (uint16_t)(weights[largest] + left);
}

static int has_room(Filter *filter, size_t count, size_t weights, int spread)
{
    filter->first = malloc(sizeof *filter->first * count);
    filter->used = malloc(sizeof *filter->used * count);
    filter->weights = calloc(weights, sizeof *filter->weights);
    filter->spread = spread ? malloc(sizeof *filter->spread * weights * LANES) : NULL;
    return filter->first && filter->used && filter->weights && (filter->spread || !spread);
}

int make_filter(Filter *filter, double start, double end, int low, int high, int count, int spread)
{
    double scale = (end - start) / count, radius = scale > 1 ? scale : 1;
    int most = (int)ceil(2 * radius) + 1;
    size_t weights;
    double *exact = malloc(sizeof *exact * (size_t)most);

    filter->taps = (most + PAIR - 1) / PAIR * PAIR;
    weights = (size_t)count * (size_t)filter->taps;
    if (!exact || !has_room(filter, (size_t)count, weights, spread)) {
        free(exact);
        return -1;
    }
    for (int i = 0; i < count; i++) {
        double centre = start + (i + 0.5) * scale;
        int first = (int)floor(centre - radius + 0.5), last = (int)floor(centre + radius + 0.5);
        first = first < low ? low : first > high - 1 ? high - 1 : first;
        last = last > high ? high : last <= first ? first + 1 : last;
        filter->first[i] = first;
        filter->used[i] = last - first < most ? last - first : most;
        weigh(centre, radius, first, filter->used[i],
              filter->weights + (size_t)i * (size_t)filter->taps, exact);
    }
    for (size_t i = 0; spread && i < weights * LANES; i++)
        filter->spread[i] = filter->weights[i / LANES];
    free(exact);
    return 0;
}

void free_filter(Filter *filter)
{
    free(filter->first);
    free(filter->used);
    free(filter->weights);
    free(filter->spread);
    memset(filter, 0, sizeof *filter);
}

/* Each product loses what is below its unit: on average half of one, which is put in beforehand. */
static inline int lost(int taps) { return taps / 2; }

#if defined(__SSE2__)

void add_rows(const uint8_t *const *rows, const uint16_t *weights, int taps, int count,
              uint16_t *sum)
{
    const __m128i nought = _mm_setzero_si128(), start = _mm_set1_epi16((short)lost(taps));

    for (ptrdiff_t at = 0; at < count; at += STRIP) {
        __m128i a = start, b = start, c = start, d = start;
        for (int tap = 0; tap < taps; tap++) {
            const __m128i weight = _mm_set1_epi16((short)weights[tap]);
            const __m128i low = _mm_loadu_si128((const __m128i *)(rows[tap] + at));
            const __m128i high = _mm_loadu_si128((const __m128i *)(rows[tap] + at + STRIP / 2));
            a = _mm_add_epi16(a, _mm_mulhi_epu16(_mm_unpacklo_epi8(nought, low), weight));
            b = _mm_add_epi16(b, _mm_mulhi_epu16(_mm_unpackhi_epi8(nought, low), weight));
            c = _mm_add_epi16(c, _mm_mulhi_epu16(_mm_unpacklo_epi8(nought, high), weight));
            d = _mm_add_epi16(d, _mm_mulhi_epu16(_mm_unpackhi_epi8(nought, high), weight));
        }
        _mm_storeu_si128((__m128i *)(sum + at), a);
        _mm_storeu_si128((__m128i *)(sum + at + 8), b);
        _mm_storeu_si128((__m128i *)(sum + at + 16), c);
        _mm_storeu_si128((__m128i *)(sum + at + 24), d);
    }
}

/* The sums of a result's taps in 1/256: those of even taps, then those of odd ones. */
static inline __m128i sum_of(const uint16_t *row, const Filter *filter, ptrdiff_t x)
{
    const uint16_t *from = row + (ptrdiff_t)filter->first[x] * LANES;
    const uint16_t *weights = filter->spread + x * filter->taps * LANES;
    __m128i sum = _mm_mulhi_epu16(_mm_loadu_si128((const __m128i *)from),
                                  _mm_loadu_si128((const __m128i *)weights));

    for (int tap = PAIR; tap < filter->used[x]; tap += PAIR) {
        const __m128i two = _mm_loadu_si128((const __m128i *)(from + tap * LANES));
        const __m128i by = _mm_loadu_si128((const __m128i *)(weights + tap * LANES));
        sum = _mm_add_epi16(sum, _mm_mulhi_epu16(two, by));
    }
    return sum;
}

/* Two results from their sums, rounded, a 16-bit number each channel. */
static inline __m128i rounded(__m128i first, __m128i second, int used, int used_next)
{
    const __m128i rounding = _mm_unpacklo_epi64(_mm_set1_epi16((short)(128 + lost(used))),
                                                _mm_set1_epi16((short)(128 + lost(used_next))));
    const __m128i sum = _mm_add_epi16(_mm_unpacklo_epi64(first, second),
                                      _mm_unpackhi_epi64(first, second));

    return _mm_srli_epi16(_mm_adds_epu16(sum, rounding), 8);
}

void resample_row(const uint16_t *row, int low, const Filter *filter, int count, uint8_t *pixels)
{
    const int *used = filter->used;
    ptrdiff_t x = 0;

    row -= (ptrdiff_t)low * LANES;
    for (; x + 4 <= count; x += 4) {
        const __m128i a = sum_of(row, filter, x), b = sum_of(row, filter, x + 1);
        const __m128i c = sum_of(row, filter, x + 2), d = sum_of(row, filter, x + 3);
        _mm_storeu_si128((__m128i *)(pixels + x * LANES),
                         _mm_packus_epi16(rounded(a, b, used[x], used[x + 1]),
                                          rounded(c, d, used[x + 2], used[x + 3])));
    }
    for (; x < count; x++) {
        const __m128i one = sum_of(row, filter, x);
        const __m128i two = rounded(one, one, used[x], used[x]);
        const int32_t pixel = _mm_cvtsi128_si32(_mm_packus_epi16(two, two));
        memcpy(pixels + x * LANES, &pixel, sizeof pixel);
    }
}

void write_floats(const uint8_t *pixels, int count, int channel, float scale, float bias, float *to)
{
    const __m128 times = _mm_set1_ps(scale), plus = _mm_set1_ps(bias);
    const __m128i byte = _mm_set1_epi32(255), shift = _mm_cvtsi32_si128(8 * channel);
    ptrdiff_t x = 0;

    for (; x + 4 <= count; x += 4) {
        const __m128i four = _mm_loadu_si128((const __m128i *)(pixels + x * LANES));
        const __m128i values = _mm_and_si128(_mm_srl_epi32(four, shift), byte);
        _mm_storeu_ps(to + x, _mm_add_ps(_mm_mul_ps(_mm_cvtepi32_ps(values), times), plus));
    }
    for (; x < count; x++)
        to[x] = (float)pixels[x * LANES + channel] * scale + bias;
}

#else

static inline uint16_t part(uint16_t value, uint16_t weight)
{
    return (uint16_t)(((uint32_t)value * weight) >> 16);
}

void add_rows(const uint8_t *const *rows, const uint16_t *weights, int taps, int count,
              uint16_t *sum)
{
    for (ptrdiff_t at = 0; at < count; at += STRIP) {
        uint16_t strip[STRIP];
        for (int i = 0; i < STRIP; i++)
            strip[i] = (uint16_t)lost(taps);
        for (int tap = 0; tap < taps; tap++)
            for (int i = 0; i < STRIP; i++)
                strip[i] = (uint16_t)(strip[i] + part((uint16_t)(rows[tap][at + i] << 8), weights[tap]));
        memcpy(sum + at, strip, sizeof strip);
    }
}

void resample_row(const uint16_t *row, int low, const Filter *filter, int count, uint8_t *pixels)
{
    for (ptrdiff_t x = 0; x < count; x++) {
        const uint16_t *from = row + (size_t)(filter->first[x] - low) * LANES;
        const uint16_t *weights = filter->spread + (size_t)x * (size_t)filter->taps * LANES;
        uint32_t sum[LANES] = {0};
        for (int i = 0; i < filter->used[x] * LANES; i++)
            sum[i % LANES] += part(from[i], weights[i]);
        for (int i = 0; i < LANES; i++) {
            uint32_t value = sum[i] + 128 + (uint32_t)lost(filter->used[x]);
            pixels[x * LANES + i] = (uint8_t)(value > 65535 ? 255 : value >> 8);
        }
    }
}

void write_floats(const uint8_t *pixels, int count, int channel, float scale, float bias, float *to)
{
    for (ptrdiff_t x = 0; x < count; x++)
        to[x] = (float)pixels[x * LANES + channel] * scale + bias;
}

#endif

void write_bytes(const uint8_t *pixels, int count, int channel, uint8_t *to)
{
    for (ptrdiff_t x = 0; x < count; x++)
        to[x] = pixels[x * LANES + channel];
}

void mirror(uint8_t *pixels, int count)
{
    for (int left = 0, right = count - 1; left < right; left++, right--) {
        uint32_t one, other;
        memcpy(&one, pixels + (size_t)left * LANES, LANES);
        memcpy(&other, pixels + (size_t)right * LANES, LANES);
        memcpy(pixels + (size_t)left * LANES, &other, LANES);
        memcpy(pixels + (size_t)right * LANES, &one, LANES);
    }
}
