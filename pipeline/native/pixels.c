/* penstock.native.pixels: regions of decoded pictures, resampled as penstock.native.jpeg does it.
 * pixels.pyi says what it takes. It needs no library. */

#include "rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_REDUCTION = 127 };

typedef struct {
    const uint8_t *pixels;           /* [height][width][CHANNELS] */
    int height, width, flip;
    double left, top, right, bottom; /* of the region */
} Picture;

/* The picture of a row; -1 if it does not lie in `pixels`, or its region in it. */
static int find(const Rows *rows, Py_ssize_t row, const Py_buffer *pixels, Picture *picture)
{
    const int64_t *facts = facts_of(rows, row);
    const double *region = region_of(rows, row);
    int64_t start = facts[0], height = facts[1], width = facts[2];
    double across = region[2] - region[0], down = region[3] - region[1];

    if (height < 1 || height > MOST_SIDE || width < 1 || width > MOST_SIDE || start < 0 ||
        start > pixels->len || height * width * CHANNELS > pixels->len - start)
        return -1;
    if (!(region[0] >= 0 && region[1] >= 0 && region[2] <= (double)width &&
          region[3] <= (double)height && across >= 0.5 && down >= 0.5 &&
          across <= rows->width * (double)MOST_REDUCTION &&
          down <= rows->height * (double)MOST_REDUCTION))
        return -1;
    picture->pixels = (const uint8_t *)pixels->buf + start;
    picture->height = (int)height;
    picture->width = (int)width;
    picture->flip = facts[3] != 0;
    picture->left = region[0];
    picture->top = region[1];
    picture->right = region[2];
    picture->bottom = region[3];
    return 0;
}

static void write_row(const Rows *rows, Py_ssize_t row, const uint8_t *pixels, int y)
{
    ptrdiff_t plane = (ptrdiff_t)rows->height * rows->width, at = (ptrdiff_t)y * rows->width;

    if (rows->channels_last)
        narrow(pixels, rows->width, bytes_of(rows, row) + at * CHANNELS);
    else if (has_floats(rows))
        write_floats(pixels, rows->width, rows->scale, rows->bias, floats_of(rows, row) + at, plane,
                     is_past_cache(rows));
    else
        write_bytes(pixels, rows->width, bytes_of(rows, row) + at, plane);
}

/* Resample down and then across, a row of the result at a time; -1 without memory. */
static int resample(const Rows *rows, Py_ssize_t row, const Picture *from)
{
    Filter across = {0}, down = {0};
    int low_x, high_x, low_y, high_y, next, failed = -1;
    size_t pitch, lanes;
    uint8_t *ring = NULL, *pixels = NULL;
    uint16_t *sums = NULL;
    const uint8_t **lines = NULL;

    set_bounds(from->left, from->right, rows->width, rows->inside, from->width, &low_x, &high_x);
    set_bounds(from->top, from->bottom, rows->height, rows->inside, from->height, &low_y, &high_y);
    lanes = (size_t)(high_x - low_x) * LANES;
    pitch = lanes + PADDING;
    if (make_filter(&across, from->left, from->right, low_x, high_x, rows->width,
                    from->flip ? MIRRORED : ACROSS) ||
        make_filter(&down, from->top, from->bottom, low_y, high_y, rows->height, DOWN))
        goto end;
    ring = calloc(pitch * (size_t)down.taps, 1);
    sums = calloc(lanes + PADDING, sizeof *sums);
    lines = calloc((size_t)down.taps, sizeof *lines);
    pixels = calloc((size_t)rows->width, LANES);
    if (!ring || !sums || !lines || !pixels)
        goto end;
    next = low_y;
    for (int y = 0; y < rows->height; y++) {
        int first = down.first[y], used = down.used[y];
        for (next = next < first ? first : next; next < first + used; next++)
            widen(from->pixels + ((size_t)next * (size_t)from->width + (size_t)low_x) * CHANNELS,
                  high_x - low_x, ring + pitch * (size_t)(next % down.taps));
        for (int tap = 0; tap < used; tap++)
            lines[tap] = ring + pitch * (size_t)((first + tap) % down.taps);
        add_rows(lines, down.weights + (size_t)y * (size_t)down.taps, used, (int)lanes, sums);
        resample_row(sums, low_x, &across, rows->width, pixels);
        write_row(rows, row, pixels, y);
    }
    have_written();
    failed = 0;
end:
    free_filter(&across);
    free_filter(&down);
    free(ring);
    free(sums);
    free(lines);
    free(pixels);
    return failed;
}

typedef enum { DONE, NOT_THERE, NO_MEMORY } Outcome;

static Outcome resample_all(const Rows *rows, const Py_buffer *pixels)
{
    for (Py_ssize_t row = 0; row < rows->count; row++) {
        Picture picture;
        tell_place(rows, row);
        if (find(rows, row, pixels, &picture))
            return NOT_THERE;
        if (resample(rows, row, &picture))
            return NO_MEMORY;
    }
    return DONE;
}

static PyObject *crop_resize(PyObject *module, PyObject *arguments)
{
    PyObject *from, *target, *facts, *regions, *place;
    Py_buffer pixels;
    Rows rows;
    Outcome outcome;
    float *s = rows.scale, *b = rows.bias;

    (void)module;
    memset(&rows, 0, sizeof rows);
    if (!PyArg_ParseTuple(arguments, "OOOOpp((fff)(fff))O:crop_resize", &from, &target, &facts,
                          &regions, &rows.inside, &rows.channels_last, s, s + 1, s + 2, b, b + 1,
                          b + 2, &place) ||
        take_rows(&rows, target, facts, regions, place))
        return NULL;
    if (PyObject_GetBuffer(from, &pixels, PyBUF_C_CONTIGUOUS)) {
        release_rows(&rows);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    outcome = resample_all(&rows, &pixels);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&pixels);
    release_rows(&rows);
    if (outcome == NO_MEMORY)
        return PyErr_NoMemory();
    if (outcome == DONE)
        Py_RETURN_NONE;
    PyErr_SetString(PyExc_ValueError, "a picture or its region is out of bounds");
    return NULL;
}

static PyMethodDef methods[] = {
    {"crop_resize", crop_resize, METH_VARARGS, "Resample regions of pictures into `target`."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "penstock.native.pixels", .m_size = -1, .m_methods = methods};

PyMODINIT_FUNC PyInit_pixels(void) { return PyModule_Create(&definition); }
