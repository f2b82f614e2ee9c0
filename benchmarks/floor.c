/* The floor for benchmarks/images.py: the work on each image and nothing else. One C call an image, no
 * Python, no loader, files read beforehand, one batch of memory that is used again.
 *
 *     floor WIDTH HEIGHT ROUNDS FULL FILE...     prints CPU milliseconds an image
 *
 * FULL=0: random region, DCT-scaled decode, antialiased resize to 224, flip, normalise to float32.
 * FULL=1: decode all pixels and do nothing with them.
 */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <jpeglib.h>

#include "region.h"

enum { SIDE = 224, BATCH = 64, PLANE = SIDE * SIDE, IMAGE = CHANNELS * PLANE };

static double cpu(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static double draw(void) { return rand() / (RAND_MAX + 1.0); }

static void choose(Region *region, float *to)
{
    double width = region->image_width, height = region->image_height, across, down;
    int flip = draw() < 0.5;

    do {
        double area = width * height * (0.08 + 0.92 * draw());
        double ratio = exp(log(0.75) + log(16 / 9.0) * draw());
        across = rint(sqrt(area * ratio));
        down = rint(sqrt(area / ratio));
    } while (across > width || down > height);
    region->left = floor((width - across + 1) * draw());
    region->top = floor((height - down + 1) * draw());
    region->right = region->left + across;
    region->bottom = region->top + down;
    region->inside = region->reduce = 1;
    region->out_width = region->out_height = SIDE;
    region->plane = PLANE;
    region->past_cache = 1;
    region->row = SIDE;
    region->column = flip ? -1 : 1;
    region->floats = to + (flip ? SIDE - 1 : 0);
    for (int channel = 0; channel < CHANNELS; channel++) {
        region->scale[channel] = 1 / 57.f;
        region->bias[channel] = -2.f;
    }
}

static void decode_all(uint8_t *data, size_t size, uint8_t *row)
{
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;

    jpeg.err = jpeg_std_error(&errors);
    jpeg_create_decompress(&jpeg);
    jpeg_mem_src(&jpeg, data, size);
    jpeg_read_header(&jpeg, TRUE);
    jpeg_start_decompress(&jpeg);
    while (jpeg.output_scanline < jpeg.output_height)
        jpeg_read_scanlines(&jpeg, &row, 1);
    jpeg_destroy_decompress(&jpeg);
}

int main(int count, char **names)
{
    int width = atoi(names[1]), height = atoi(names[2]), rounds = atoi(names[3]);
    int full = atoi(names[4]), files = count - 5, done = 0;
    uint8_t **data = calloc((size_t)files, sizeof *data), *row = malloc((size_t)width * 4);
    size_t *sizes = calloc((size_t)files, sizeof *sizes);
    float *batch = aligned_alloc(64, sizeof *batch * BATCH * IMAGE);
    double start;

    for (int i = 0; i < files; i++) {
        FILE *file = fopen(names[i + 5], "rb");
        fseek(file, 0, SEEK_END);
        sizes[i] = (size_t)ftell(file);
        rewind(file);
        data[i] = malloc(sizes[i]);
        if (fread(data[i], 1, sizes[i], file) != sizes[i])
            return 1;
        fclose(file);
    }
    memset(batch, 0, sizeof *batch * BATCH * IMAGE);
    start = cpu();
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < files; i++, done++) {
            Region region;
            memset(&region, 0, sizeof region);
            region.image_width = width;
            region.image_height = height;
            choose(&region, batch + (size_t)(done % BATCH) * IMAGE);
            if (full)
                decode_all(data[i], sizes[i], row);
            else if (decode_region(data[i], sizes[i], &region) != DECODED)
                return 1;
        }
    printf("%.6f\n", (cpu() - start) / done * 1e3);
    return 0;
}
