/* penstock.native.jpeg: one function, which makes JPEG files into pictures of their regions.
 * jpeg.pyi says what it takes. */

#include "rows.h"

#include <string.h>

#include <jpeglib.h>

#include "region.h"

enum { WHOLE = 0, IS_UNSUPPORTED = -1, IS_DAMAGED = -2, IS_TOO_MUCH = -3 }; /* see jpeg.pyi */

typedef struct {
    Py_buffer *contents;
    Py_buffer outcomes; /* int64 [count] */
    int reduce;
} Files;

static void swap(double *one, double *other)
{
    double kept = *one;
    *one = *other;
    *other = kept;
}

/* From the picture as it is to be looked at to the picture as the file stores it. */
static void turn(const Rows *rows, Region *region, int orientation, int flip)
{
    int mirrored = orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7;
    int upended = orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8;
    int transposed = orientation >= 5, columns = region->out_width, height = region->out_height;
    ptrdiff_t right = rows->channels_last ? CHANNELS : 1, down = columns * right, start = 0;

    if (mirrored) {
        region->left = region->image_width - region->left;
        region->right = region->image_width - region->right;
        swap(&region->left, &region->right);
    }
    if (upended) {
        region->top = region->image_height - region->top;
        region->bottom = region->image_height - region->bottom;
        swap(&region->top, &region->bottom);
        start += (height - 1) * down;
        down = -down;
    }
    if (mirrored != flip) {
        start += (columns - 1) * right;
        right = -right;
    }
    region->plane = rows->channels_last ? 1 : (ptrdiff_t)height * columns;
    region->row = transposed ? right : down;
    region->column = transposed ? down : right;
    if (transposed) {
        int side = region->image_width;
        region->image_width = region->image_height;
        region->image_height = side;
        region->out_width = height;
        region->out_height = columns;
        swap(&region->left, &region->top);
        swap(&region->right, &region->bottom);
    }
    if (region->bytes)
        region->bytes += start;
    else
        region->floats += start;
}

/* What is to be made of a file; -1 if its facts are none. */
static int describe(const Rows *rows, const Files *files, Py_ssize_t row, Region *region)
{
    const int64_t *facts = facts_of(rows, row); /* width, height, orientation, flip */
    const double *sides = region_of(rows, row);

    memset(region, 0, sizeof *region);
    if (facts[0] < 1 || facts[0] > JPEG_MAX_DIMENSION || facts[1] < 1 ||
        facts[1] > JPEG_MAX_DIMENSION || facts[2] < 1 || facts[2] > 8)
        return -1;
    region->image_width = (int)facts[0];
    region->image_height = (int)facts[1];
    region->left = sides[0];
    region->top = sides[1];
    region->right = sides[2];
    region->bottom = sides[3];
    region->inside = rows->inside;
    region->reduce = files->reduce;
    region->out_width = rows->width;
    region->out_height = rows->height;
    region->bytes = bytes_of(rows, row);
    region->floats = floats_of(rows, row);
    memcpy(region->scale, rows->scale, sizeof region->scale);
    memcpy(region->bias, rows->bias, sizeof region->bias);
    region->past_cache = is_past_cache(rows);
    turn(rows, region, (int)facts[2], facts[3] != 0);
    return 0;
}

static int64_t decode_one(const Rows *rows, const Files *files, Py_ssize_t row)
{
    const Py_buffer *content = files->contents + row;
    Region region;

    if (describe(rows, files, row, &region))
        return IS_UNSUPPORTED;
    switch (decode_region(content->buf, (size_t)content->len, &region)) {
    case DECODED:
        return WHOLE + region.warnings;
    case UNSUPPORTED:
        return IS_UNSUPPORTED;
    case NO_MEMORY:
        return IS_TOO_MUCH;
    default:
        return IS_DAMAGED;
    }
}

/* 0, or -1 without memory. */
static int decode_all(const Rows *rows, const Files *files)
{
    int64_t *outcomes = files->outcomes.buf;

    for (Py_ssize_t row = 0; row < rows->count; row++) {
        tell_place(rows, row);
        outcomes[row] = decode_one(rows, files, row);
        if (outcomes[row] == IS_TOO_MUCH)
            return -1;
    }
    return 0;
}

static int take_outcomes(Files *files, PyObject *from, Py_ssize_t count)
{
    if (PyObject_GetBuffer(from, &files->outcomes,
                           PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS | PyBUF_FORMAT))
        return -1;
    if (files->outcomes.itemsize == 8 && files->outcomes.len == count * 8 &&
        files->outcomes.format && strchr("lq", files->outcomes.format[0]))
        return 0;
    PyBuffer_Release(&files->outcomes);
    PyErr_SetString(PyExc_ValueError, "the outcomes have to be int64 [rows]");
    return -1;
}

/* Take hold of the files' bytes, one after the other, and decode them. */
static PyObject *decode_held(const Rows *rows, Files *files, PyObject *contents)
{
    Py_ssize_t held = 0, count = rows->count;
    int failed = 0;

    files->contents = PyMem_Calloc(count ? (size_t)count : 1, sizeof *files->contents);
    if (!files->contents)
        return PyErr_NoMemory();
    for (; held < count; held++)
        if (PyObject_GetBuffer(PySequence_Fast_GET_ITEM(contents, held), files->contents + held,
                               PyBUF_SIMPLE))
            break;
    if (held == count) {
        Py_BEGIN_ALLOW_THREADS
        failed = decode_all(rows, files);
        Py_END_ALLOW_THREADS
        if (failed)
            PyErr_NoMemory();
    }
    while (held > 0)
        PyBuffer_Release(files->contents + --held);
    PyMem_Free(files->contents);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *decode(PyObject *module, PyObject *arguments)
{
    PyObject *given, *target, *facts, *regions, *place, *outcomes, *contents, *done = NULL;
    Rows rows;
    Files files = {0};
    float *s = rows.scale, *b = rows.bias;

    (void)module;
    memset(&rows, 0, sizeof rows);
    if (!PyArg_ParseTuple(arguments, "OOOOppp((fff)(fff))OO:decode", &given, &target, &facts,
                          &regions, &rows.inside, &rows.channels_last, &files.reduce, s, s + 1,
                          s + 2, b, b + 1, b + 2, &place, &outcomes))
        return NULL;
    contents = PySequence_Fast(given, "the files have to be a list");
    if (!contents)
        return NULL;
    if (take_rows(&rows, target, facts, regions, place) == 0) {
        if (PySequence_Fast_GET_SIZE(contents) != rows.count)
            PyErr_SetString(PyExc_ValueError, "there have to be as many files as rows");
        else if (take_outcomes(&files, outcomes, rows.count) == 0) {
            done = decode_held(&rows, &files, contents);
            PyBuffer_Release(&files.outcomes);
        }
        release_rows(&rows);
    }
    Py_DECREF(contents);
    return done;
}

static PyMethodDef methods[] = {
    {"decode", decode, METH_VARARGS, "Decode regions of JPEG files into `target`."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "penstock.native.jpeg", .m_size = -1, .m_methods = methods};

#define TEXT(value) #value
#define VERSION(value) TEXT(value)

PyMODINIT_FUNC PyInit_jpeg(void)
{
    PyObject *module = PyModule_Create(&definition);

    if (!module || PyModule_AddStringConstant(module, "library",
                                              "libjpeg-turbo " VERSION(LIBJPEG_TURBO_VERSION)))
        return NULL;
    return module;
}
