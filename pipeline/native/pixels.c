/* pipeline.native.pixels: a region of a decoded picture, resampled as pipeline.native.jpeg does it.
 * pixels.pyi says what it takes. It needs no library. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "resample.h"

enum { CHANNELS = 3, MOST_SIDE = 1 << 16, MOST_REDUCTION = 127 };

typedef struct {
    const uint8_t *pixels;           /* [height][width][CHANNELS] */
    int height, width;
    double left, top, right, bottom; /* of the region */
    int inside, flip;
    int rows, columns;               /* of the result */
    uint8_t *bytes;                  /* the result, [CHANNELS][rows][columns]; or NULL: */
    float *floats;                   /* the same, for value * scale + bias */
    float scale[CHANNELS], bias[CHANNELS];
} Task;

/* Three bytes a pixel become four; the fourth means nothing. */
static void widen(const uint8_t *from, int count, uint8_t *to)
{
    for (int x = 0; x < count - 1; x++)
        memcpy(to + x * LANES, from + x * CHANNELS, LANES);
    memcpy(to + (count - 1) * LANES, from + (count - 1) * CHANNELS, CHANNELS);
}

static void write_row(const Task *task, uint8_t *pixels, int y)
{
    size_t plane = (size_t)task->rows * (size_t)task->columns;
    size_t at = (size_t)y * (size_t)task->columns;

    if (task->flip)
        mirror(pixels, task->columns);
    for (int channel = 0; channel < CHANNELS; channel++, at += plane)
        if (task->bytes)
            write_bytes(pixels, task->columns, channel, task->bytes + at);
        else
            write_floats(pixels, task->columns, channel, task->scale[channel], task->bias[channel],
                         task->floats + at);
}

/* Resample down and then across, a row of the result at a time; -1 without memory. */
static int resample(const Task *task)
{
    Filter across = {0}, down = {0};
    int low_x, high_x, low_y, high_y, next, failed = -1;
    size_t pitch, lanes;
    uint8_t *ring = NULL, *pixels = NULL;
    uint16_t *sums = NULL;
    const uint8_t **rows = NULL;

    set_bounds(task->left, task->right, task->columns, task->inside, task->width, &low_x, &high_x);
    set_bounds(task->top, task->bottom, task->rows, task->inside, task->height, &low_y, &high_y);
    lanes = (size_t)(high_x - low_x) * LANES;
    pitch = lanes + PADDING;
    if (make_filter(&across, task->left, task->right, low_x, high_x, task->columns, 1) ||
        make_filter(&down, task->top, task->bottom, low_y, high_y, task->rows, 0))
        goto end;
    ring = calloc(pitch * (size_t)down.taps, 1);
    sums = calloc(lanes + PADDING, sizeof *sums);
    rows = calloc((size_t)down.taps, sizeof *rows);
    pixels = calloc((size_t)task->columns, LANES);
    if (!ring || !sums || !rows || !pixels)
        goto end;
    next = low_y;
    for (int y = 0; y < task->rows; y++) {
        int first = down.first[y], used = down.used[y];
        for (next = next < first ? first : next; next < first + used; next++)
            widen(task->pixels + ((size_t)next * (size_t)task->width + (size_t)low_x) * CHANNELS,
                  high_x - low_x, ring + pitch * (size_t)(next % down.taps));
        for (int tap = 0; tap < used; tap++)
            rows[tap] = ring + pitch * (size_t)((first + tap) % down.taps);
        add_rows(rows, down.weights + (size_t)y * (size_t)down.taps, used, (int)lanes, sums);
        resample_row(sums, low_x, &across, task->columns, pixels);
        write_row(task, pixels, y);
    }
    failed = 0;
end:
    free_filter(&across);
    free_filter(&down);
    free(ring);
    free(sums);
    free(rows);
    free(pixels);
    return failed;
}

static int is_of(const Py_buffer *buffer, const char *format, Py_ssize_t itemsize)
{
    return buffer->itemsize == itemsize && buffer->format && strcmp(buffer->format, format) == 0;
}

static int set_buffers(Task *task, const Py_buffer *pixels, const Py_buffer *target)
{
    int floats = is_of(target, "f", sizeof(float));

    if (pixels->ndim != 3 || pixels->shape[2] != CHANNELS || !is_of(pixels, "B", 1) ||
        target->ndim != 3 || target->shape[0] != CHANNELS || (!floats && !is_of(target, "B", 1)))
        return -1;
    for (int axis = 0; axis < 3; axis++)
        if (pixels->shape[axis] < 1 || pixels->shape[axis] > MOST_SIDE ||
            target->shape[axis] < 1 || target->shape[axis] > MOST_SIDE)
            return -1;
    task->pixels = pixels->buf;
    task->height = (int)pixels->shape[0];
    task->width = (int)pixels->shape[1];
    task->rows = (int)target->shape[1];
    task->columns = (int)target->shape[2];
    task->bytes = floats ? NULL : target->buf;
    task->floats = floats ? target->buf : NULL;
    return 0;
}

static int is_sound(const Task *task)
{
    double width = task->right - task->left, height = task->bottom - task->top;

    return task->left >= 0 && task->top >= 0 && task->right <= task->width &&
           task->bottom <= task->height && width >= 0.5 && height >= 0.5 &&
           width <= task->columns * (double)MOST_REDUCTION &&
           height <= task->rows * (double)MOST_REDUCTION;
}

static PyObject *crop_resize(PyObject *module, PyObject *arguments)
{
    PyObject *from, *into;
    Py_buffer pixels, target;
    Task task;
    float *s = task.scale, *b = task.bias;
    int failed = 1;

    (void)module;
    memset(&task, 0, sizeof task);
    if (!PyArg_ParseTuple(arguments, "OO(dddd)pp((fff)(fff)):crop_resize", &from, &into, &task.left,
                          &task.top, &task.right, &task.bottom, &task.inside, &task.flip, s, s + 1,
                          s + 2, b, b + 1, b + 2))
        return NULL;
    if (PyObject_GetBuffer(from, &pixels, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT))
        return NULL;
    if (PyObject_GetBuffer(into, &target, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)) {
        PyBuffer_Release(&pixels);
        return NULL;
    }
    if (set_buffers(&task, &pixels, &target) || !is_sound(&task)) {
        PyErr_SetString(PyExc_ValueError, "the pictures or the region are none of their kind");
    } else {
        Py_BEGIN_ALLOW_THREADS
        failed = resample(&task);
        Py_END_ALLOW_THREADS
        if (failed)
            PyErr_NoMemory();
    }
    PyBuffer_Release(&pixels);
    PyBuffer_Release(&target);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"crop_resize", crop_resize, METH_VARARGS, "Resample a region of a picture into `target`."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "pipeline.native.pixels", .m_size = -1, .m_methods = methods};

PyMODINIT_FUNC PyInit_pixels(void) { return PyModule_Create(&definition); }
