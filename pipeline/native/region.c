/* From the bytes of a JPEG file to a resampled region of it.
 *
 * 1. Rows above the region are skipped: their bits are read and nothing is computed from them.
 *    Nothing below it is read at all. Columns beside it are not transformed.
 * 2. Where the region is at least twice as large as the result, the DCT gives it at 1/2, 1/4 or 1/8.
 * 3. A few decoded rows at a time are resampled, down and then across, into a row of the result.
 *
 * Memory is a few rows of the region, and for progressive files the image's coefficients, which is
 * why there is a limit. Whatever a file holds ends in an Outcome: libjpeg's errors come back by
 * longjmp, and its warnings are counted.
 */

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#include "region.h"

#if !defined(JCS_EXTENSIONS) || !defined(LIBJPEG_TURBO_VERSION_NUMBER)
#error "libjpeg-turbo is needed: another libjpeg cannot skip rows"
#endif

enum {
    BORDER = 2,      /* pixels beside the region that smooth upsampling of colours looks at */
    MOST_TAPS = 256, /* beyond, 16 bits are too few for the weights */
    MOST_SCANS = 200 /* of a progressive file; an honest one has about ten */
};
static const size_t MOST_COEFFICIENTS = (size_t)1 << 28; /* of a progressive file; two bytes each */

typedef struct {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf escape;
    Region *region;
    Outcome outcome;   /* of an escape */
    Filter across, down;
    int low_x, high_x; /* the region's pixels in what is decoded */
    int low_y, high_y;
    int origin;        /* where decoded rows begin */
    uint8_t *ring;     /* the last decoded rows */
    size_t pitch;      /* bytes of a row in it */
    const uint8_t **rows;
    uint16_t *sums;
    uint8_t *pixels;   /* a row of the result */
} Session;

static void give_up(Session *session, Outcome outcome)
{
    session->outcome = outcome;
    longjmp(session->escape, 1);
}

static void on_error(j_common_ptr jpeg) { give_up(jpeg->client_data, DAMAGED); }

static void on_message(j_common_ptr jpeg, int level)
{
    if (level < 0)
        ((Session *)jpeg->client_data)->region->warnings++;
}

static void on_progress(j_common_ptr jpeg)
{
    if (((j_decompress_ptr)jpeg)->input_scan_number > MOST_SCANS)
        give_up(jpeg->client_data, DAMAGED); /* it has more scans than any honest file */
}

static void no_output(j_common_ptr jpeg) { (void)jpeg; }

static void *bytes(Session *session, size_t count)
{
    void *found = calloc(count ? count : 1, 1);

    if (!found)
        give_up(session, NO_MEMORY);
    return found;
}

/* The numerator over 8 of the smallest DCT that still gives as many pixels as are wanted. */
static int eighths(const Region *region)
{
    double width = region->right - region->left, height = region->bottom - region->top;
    int found = 8;

    while (region->reduce && found > 1 && width * found >= region->out_width * 16.0 &&
           height * found >= region->out_height * 16.0)
        found /= 2;
    return found;
}

static void read_header(Session *session, const uint8_t *data, size_t size)
{
    j_decompress_ptr jpeg = &session->jpeg;
    const Region *region = session->region;

    jpeg_mem_src(jpeg, (unsigned char *)data, size);
    jpeg_read_header(jpeg, TRUE);
    if ((int)jpeg->image_width != region->image_width ||
        (int)jpeg->image_height != region->image_height)
        give_up(session, UNSUPPORTED); /* its header gives another size */
    if (jpeg->data_precision != 8 ||
        (jpeg->jpeg_color_space != JCS_GRAYSCALE && jpeg->jpeg_color_space != JCS_YCbCr &&
         jpeg->jpeg_color_space != JCS_RGB))
        give_up(session, UNSUPPORTED); /* its colours are of another kind */
    if (jpeg_has_multiple_scans(jpeg) &&
        (size_t)jpeg->image_width * jpeg->image_height * (size_t)jpeg->num_components >
            MOST_COEFFICIENTS)
        give_up(session, UNSUPPORTED); /* it is too large for a progressive file */
}

/* Begin to decode the columns of the region, at its first row. */
static void start(Session *session)
{
    j_decompress_ptr jpeg = &session->jpeg;
    const Region *region = session->region;
    int count = region->out_width, rows = region->out_height;
    JDIMENSION offset, width;
    double scale;

    jpeg->out_color_space = JCS_EXT_RGBX;
    jpeg->scale_num = (unsigned)eighths(region);
    jpeg->scale_denom = 8;
    jpeg->dct_method = JDCT_ISLOW;
    jpeg->do_block_smoothing = FALSE; /* for files that are not whole, which others decode */
    scale = jpeg->scale_num / 8.0;
    jpeg_start_decompress(jpeg);

    set_bounds(region->left * scale, region->right * scale, count, region->inside,
               (int)jpeg->output_width, &session->low_x, &session->high_x);
    set_bounds(region->top * scale, region->bottom * scale, rows, region->inside,
               (int)jpeg->output_height, &session->low_y, &session->high_y);
    if (session->low_x >= session->high_x || session->low_y >= session->high_y)
        give_up(session, UNSUPPORTED); /* it does not hold the region */
    if (make_filter(&session->across, region->left * scale, region->right * scale, session->low_x,
                    session->high_x, count, region->column < 0 ? MIRRORED : ACROSS) ||
        make_filter(&session->down, region->top * scale, region->bottom * scale, session->low_y,
                    session->high_y, rows, DOWN))
        give_up(session, NO_MEMORY);

    offset = session->low_x > BORDER ? (JDIMENSION)(session->low_x - BORDER) : 0;
    width = (JDIMENSION)session->high_x + BORDER - offset;
    if (offset + width > jpeg->output_width)
        width = jpeg->output_width - offset;
    jpeg_crop_scanline(jpeg, &offset, &width);
    session->origin = (int)offset;
    if (session->low_y > 0 &&
        jpeg_skip_scanlines(jpeg, (JDIMENSION)session->low_y) != (JDIMENSION)session->low_y)
        give_up(session, DAMAGED); /* it ends above the region */
}

static void make_room(Session *session)
{
    size_t lanes = (size_t)(session->high_x - session->low_x) * LANES;

    session->pitch = (size_t)session->jpeg.output_width * LANES + PADDING;
    session->ring = bytes(session, session->pitch * (size_t)session->down.taps);
    session->rows = bytes(session, sizeof *session->rows * (size_t)session->down.taps);
    session->sums = bytes(session, sizeof *session->sums * (lanes + PADDING));
    session->pixels = bytes(session, (size_t)session->region->out_width * LANES);
}

static uint8_t *slot(Session *session, int y)
{
    return session->ring + session->pitch * (size_t)((y - session->low_y) % session->down.taps);
}

/* Where decoded row `y`, of the last ones, begins inside the region. */
static const uint8_t *decoded(Session *session, int y)
{
    return slot(session, y) + (size_t)(session->low_x - session->origin) * LANES;
}

static void write_row(const Session *session, int y)
{
    const Region *region = session->region;
    const uint8_t *pixels = session->pixels;
    const float *scale = region->scale, *bias = region->bias;
    ptrdiff_t at = y * region->row, step = region->column, plane = region->plane;
    int count = region->out_width;

    if (step < 0) { /* they come from right to left */
        at += step * (count - 1);
        step = -step;
    }
    if (step == 1 && region->bytes)
        write_bytes(pixels, count, region->bytes + at, plane);
    else if (step == 1)
        write_floats(pixels, count, scale, bias, region->floats + at, plane,
                     region->past_cache);
    else if (step == CHANNELS && plane == 1 && region->bytes)
        narrow(pixels, count, region->bytes + at);
    else
        for (int channel = 0; channel < CHANNELS; channel++, at += plane)
            for (ptrdiff_t x = 0; x < count; x++)
                if (region->bytes)
                    region->bytes[at + x * step] = pixels[x * LANES + channel];
                else
                    region->floats[at + x * step] =
                        (float)pixels[x * LANES + channel] * scale[channel] + bias[channel];
}

static void resample(Session *session)
{
    int next = session->low_y, lanes = (session->high_x - session->low_x) * LANES;

    for (int y = 0; y < session->region->out_height; y++) {
        int first = session->down.first[y], used = session->down.used[y];
        for (; next < first + used; next++) {
            JSAMPROW row = slot(session, next);
            if (jpeg_read_scanlines(&session->jpeg, &row, 1) != 1)
                give_up(session, DAMAGED); /* it ends inside the region */
        }
        for (int tap = 0; tap < used; tap++)
            session->rows[tap] = decoded(session, first + tap);
        add_rows(session->rows, session->down.weights + (size_t)y * (size_t)session->down.taps, used,
                 lanes, session->sums);
        resample_row(session->sums, session->low_x, &session->across, session->region->out_width,
                     session->pixels);
        write_row(session, y);
    }
}

static int is_sound(const Region *region)
{
    int most = JPEG_MAX_DIMENSION;

    return region->image_width > 0 && region->image_width <= most && region->image_height > 0 &&
           region->image_height <= most && region->left >= 0 && region->top >= 0 &&
           region->right <= region->image_width && region->bottom <= region->image_height &&
           region->right - region->left >= 0.5 && region->bottom - region->top >= 0.5 &&
           region->out_width > 0 && region->out_width <= most && region->out_height > 0 &&
           region->out_height <= most;
}

static int has_few_taps(const Region *region)
{
    double most = (MOST_TAPS / 2 - 1) * 8.0 / eighths(region);

    return region->right - region->left <= region->out_width * most &&
           region->bottom - region->top <= region->out_height * most;
}

Outcome decode_region(const uint8_t *data, size_t size, Region *region)
{
    Session session;

    memset(&session, 0, sizeof session);
    session.region = region;
    region->warnings = 0;
    if (!is_sound(region) || !has_few_taps(region))
        return UNSUPPORTED;
    session.jpeg.err = jpeg_std_error(&session.errors);
    session.errors.error_exit = on_error;
    session.errors.emit_message = on_message;
    session.errors.output_message = no_output;
    session.progress.progress_monitor = on_progress;
    if (setjmp(session.escape) == 0) {
        session.jpeg.client_data = &session;
        jpeg_create_decompress(&session.jpeg);
        session.jpeg.client_data = &session;
        session.jpeg.progress = &session.progress;
        read_header(&session, data, size);
        start(&session);
        make_room(&session);
        resample(&session);
        session.outcome = DECODED;
    }
    have_written();
    jpeg_destroy_decompress(&session.jpeg);
    free_filter(&session.across);
    free_filter(&session.down);
    free(session.ring);
    free(session.rows);
    free(session.sums);
    free(session.pixels);
    return session.outcome;
}
