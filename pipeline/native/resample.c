#include "resample.h"

#include "resample_avx2.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#if defined(PENSTOCK_SSE2)
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

static int has_room(Filter *filter, size_t count, size_t weights, Direction direction)
{
    filter->first = malloc(sizeof *filter->first * count);
    filter->used = malloc(sizeof *filter->used * count);
    filter->weights = calloc(weights, sizeof *filter->weights);
    if (direction == DOWN)
        return filter->first && filter->used && filter->weights;
    filter->spread = calloc((weights + (size_t)filter->taps) * LANES, sizeof *filter->spread);
    filter->rounding = malloc(sizeof *filter->rounding * count * LANES);
    return filter->first && filter->used && filter->weights && filter->spread && filter->rounding;
}

/* What is known of each result, once for each lane. */
static void spread(Filter *filter, int count)
{
    const uint16_t *weight = filter->weights;

    for (int result = 0; result < count; result++)
        for (int tap = 0; tap < filter->taps; tap += PAIR, weight += PAIR) {
            uint16_t *to = filter->spread + (spread_of(filter, result, tap) - filter->spread);
            for (int lane = 0; lane < LANES; lane++) {
                to[lane] = weight[0];
                to[LANES + lane] = weight[1];
            }
        }
    for (int result = 0; result < count; result++)
        for (int lane = 0; lane < LANES; lane++)
            filter->rounding[result * LANES + lane] = (uint16_t)(128 + lost(filter->used[result]));
}

int make_filter(Filter *filter, double start, double end, int low, int high, int count,
                Direction direction)
{
    double scale = (end - start) / count, radius = scale > 1 ? scale : 1;
    int most = (int)ceil(2 * radius) + 1;
    size_t weights;
    double *exact = malloc(sizeof *exact * (size_t)most);

    /* Upwards a result has two taps; a third would be nought. */
    most = radius == 1 ? PAIR : most;
    filter->taps = (most + PAIR - 1) / PAIR * PAIR;
    weights = (size_t)count * (size_t)filter->taps;
    if (!exact || !has_room(filter, (size_t)count, weights, direction)) {
        free(exact);
        return -1;
    }
    for (int i = 0; i < count; i++) {
        double centre = start + (i + 0.5) * scale;
        int first = (int)floor(centre - radius + 0.5), last = (int)floor(centre + radius + 0.5);
        int place = direction == MIRRORED ? count - 1 - i : i;
        first = first < low ? low : first > high - 1 ? high - 1 : first;
        last = last > high ? high : last <= first ? first + 1 : last;
        filter->first[place] = first;
        filter->used[place] = last - first < most ? last - first : most;
        weigh(centre, radius, first, filter->used[place],
              filter->weights + (size_t)place * (size_t)filter->taps, exact);
    }
    if (direction != DOWN)
        spread(filter, count);
    free(exact);
    return 0;
}

void free_filter(Filter *filter)
{
    free(filter->first);
    free(filter->used);
    free(filter->weights);
    free(filter->spread);
    free(filter->rounding);
    memset(filter, 0, sizeof *filter);
}

#if defined(PENSTOCK_SSE2)

static void add_vectors(const uint8_t *const *rows, const uint16_t *weights, int taps, int count,
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
static inline __m128i sum_of(const uint16_t *row, const Filter *across, ptrdiff_t x)
{
    const uint16_t *from = row + (ptrdiff_t)across->first[x] * LANES;
    __m128i sum = _mm_mulhi_epu16(_mm_loadu_si128((const __m128i *)from),
                                  _mm_loadu_si128((const __m128i *)spread_of(across, x, 0)));

    for (int tap = PAIR; tap < across->used[x]; tap += PAIR) {
        const __m128i two = _mm_loadu_si128((const __m128i *)(from + tap * LANES));
        const __m128i by = _mm_loadu_si128((const __m128i *)spread_of(across, x, tap));
        sum = _mm_add_epi16(sum, _mm_mulhi_epu16(two, by));
    }
    return sum;
}

/* Two results from their sums, rounded, a 16-bit number each channel. */
static inline __m128i rounded(__m128i first, __m128i second, __m128i rounding)
{
    const __m128i sum = _mm_add_epi16(_mm_unpacklo_epi64(first, second),
                                      _mm_unpackhi_epi64(first, second));

    return _mm_srli_epi16(_mm_adds_epu16(sum, rounding), 8);
}

/* Results from number `x` on. */
static void resample_vectors(const uint16_t *row, int low, const Filter *across, ptrdiff_t x,
                             int count, uint8_t *pixels)
{
    row -= (ptrdiff_t)low * LANES;
    for (; x + PAIR <= count; x += PAIR) {
        const __m128i rounding = _mm_loadu_si128((const __m128i *)(across->rounding + x * LANES));
        const __m128i two = rounded(sum_of(row, across, x), sum_of(row, across, x + 1), rounding);
        _mm_storel_epi64((__m128i *)(pixels + x * LANES), _mm_packus_epi16(two, two));
    }
    for (; x < count; x++) {
        const __m128i one = sum_of(row, across, x);
        const __m128i by = _mm_loadl_epi64((const __m128i *)(across->rounding + x * LANES));
        const __m128i two = rounded(one, one, by);
        const int32_t pixel = _mm_cvtsi128_si32(_mm_packus_epi16(two, two));
        memcpy(pixels + x * LANES, &pixel, sizeof pixel);
    }
}

#else

static inline uint16_t part(uint16_t value, uint16_t weight)
{
    return (uint16_t)(((uint32_t)value * weight) >> 16);
}

static void add_vectors(const uint8_t *const *rows, const uint16_t *weights, int taps, int count,
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

static void resample_vectors(const uint16_t *row, int low, const Filter *across, ptrdiff_t x,
                             int count, uint8_t *pixels)
{
    for (; x < count; x++) {
        const uint16_t *from = row + (size_t)(across->first[x] - low) * LANES;
        uint32_t sum[LANES] = {0};
        for (int i = 0; i < across->used[x] * LANES; i++)
            sum[i % LANES] += part(from[i], across->weights[x * across->taps + i / LANES]);
        for (int i = 0; i < LANES; i++) {
            uint32_t value = sum[i] + across->rounding[x * LANES + i];
            pixels[x * LANES + i] = (uint8_t)(value > 65535 ? 255 : value >> 8);
        }
    }
}

#endif

void widen(const uint8_t *from, int count, uint8_t *to)
{
#if defined(PENSTOCK_AVX2)
    if (has_avx2()) {
        widen_avx2(from, count, to);
        return;
    }
#endif
    for (ptrdiff_t x = 0; x < count - 1; x++) /* one byte more, and the last pixel without it */
        memcpy(to + x * LANES, from + x * CHANNELS, LANES);
    memcpy(to + (ptrdiff_t)(count - 1) * LANES, from + (ptrdiff_t)(count - 1) * CHANNELS, CHANNELS);
}

void add_rows(const uint8_t *const *rows, const uint16_t *weights, int taps, int count,
              uint16_t *sum)
{
#if defined(PENSTOCK_AVX2)
    if (has_avx2()) {
        add_rows_avx2(rows, weights, taps, count, sum);
        return;
    }
#endif
    add_vectors(rows, weights, taps, count, sum);
}

void resample_row(const uint16_t *row, int low, const Filter *across, int count, uint8_t *pixels)
{
    int done = 0;

#if defined(PENSTOCK_AVX2)
    /* With more taps, neighbours would be read too far beyond the end of the row. */
    if (has_avx2() && across->taps <= PADDING / LANES / 2) {
        resample_row_avx2(row, low, across, count, pixels);
        done = count / 8 * 8;
    }
#endif
    resample_vectors(row, low, across, done, count, pixels);
}

void write_floats(const uint8_t *pixels, int count, const float *scale, const float *bias, float *to,
                  ptrdiff_t plane, int past_cache)
{
    int done = 0;

#if defined(PENSTOCK_AVX2)
    if (has_avx2()) {
        write_floats_avx2(pixels, count, scale, bias, to, plane, past_cache);
        done = count / 8 * 8;
    }
#else
    (void)past_cache;
#endif
    for (int channel = 0; channel < CHANNELS; channel++)
        for (ptrdiff_t x = done; x < count; x++)
            to[channel * plane + x] = (float)pixels[x * LANES + channel] * scale[channel]
                                      + bias[channel];
}

void have_written(void)
{
#if defined(PENSTOCK_SSE2)
    _mm_sfence();
#endif
}

void write_bytes(const uint8_t *pixels, int count, uint8_t *to, ptrdiff_t plane)
{
    for (int channel = 0; channel < CHANNELS; channel++)
        for (ptrdiff_t x = 0; x < count; x++)
            to[channel * plane + x] = pixels[x * LANES + channel];
}

void narrow(const uint8_t *pixels, int count, uint8_t *to)
{
    for (ptrdiff_t x = 0; x < count - 1; x++) /* one byte more, which the next pixel covers */
        memcpy(to + x * CHANNELS, pixels + x * LANES, LANES);
    memcpy(to + (ptrdiff_t)(count - 1) * CHANNELS, pixels + (ptrdiff_t)(count - 1) * LANES, CHANNELS);
}
