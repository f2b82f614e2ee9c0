/* pipeline.native.jpeg: one function, which makes a JPEG file's bytes into a picture of a region.
 * jpeg.pyi says what it takes. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string.h>

#include <jpeglib.h>

#include "region.h"

static PyObject *unsupported, *damaged;

enum { PIXELS = 1 << 26 }; /* of a result, at most */

static void swap(double *one, double *other)
{
    double kept = *one;
    *one = *other;
    *other = kept;
}

/* From the picture as it is to be looked at to the picture as the file stores it. */
static void turn(Region *region, int orientation, int flip)
{
    int mirrored = orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7;
    int upended = orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8;
    int transposed = orientation >= 5, columns = region->out_width, rows = region->out_height;
    double width = region->image_width, height = region->image_height;
    ptrdiff_t right = 1, down = columns, start = 0;

    if (mirrored) {
        region->left = width - region->left;
        region->right = width - region->right;
        swap(&region->left, &region->right);
    }
    if (upended) {
        region->top = height - region->top;
        region->bottom = height - region->bottom;
        swap(&region->top, &region->bottom);
        start += (ptrdiff_t)(rows - 1) * columns;
        down = -down;
    }
    if (mirrored != flip) {
        start += columns - 1;
        right = -1;
    }
    region->plane = (ptrdiff_t)rows * columns;
    region->row = transposed ? right : down;
    region->column = transposed ? down : right;
    if (transposed) {
        int side = region->image_width;
        region->image_width = region->image_height;
        region->image_height = side;
        region->out_width = rows;
        region->out_height = columns;
        swap(&region->left, &region->top);
        swap(&region->right, &region->bottom);
    }
    if (region->bytes)
        region->bytes += start;
    else
        region->floats += start;
}

static int set_target(Region *region, const Py_buffer *target)
{
    Py_ssize_t elements = (Py_ssize_t)region->out_width * region->out_height * CHANNELS;
    int is_float = target->itemsize == 4 && target->format && strcmp(target->format, "f") == 0;
    int is_byte = target->itemsize == 1 && target->format && strcmp(target->format, "B") == 0;

    if ((!is_float && !is_byte) || target->len != elements * target->itemsize) {
        PyErr_SetString(PyExc_ValueError, "the target has to be uint8 or float32 [3, height, width]");
        return -1;
    }
    region->bytes = is_byte ? target->buf : NULL;
    region->floats = is_byte ? NULL : target->buf;
    return 0;
}

static PyObject *told(Outcome outcome, const Region *region)
{
    switch (outcome) {
    case DECODED:
        return Py_BuildValue("ls", region->warnings, region->message);
    case NO_MEMORY:
        return PyErr_NoMemory();
    case UNSUPPORTED:
        PyErr_SetString(unsupported, region->message);
        return NULL;
    default:
        PyErr_SetString(damaged, region->message);
        return NULL;
    }
}

static PyObject *decode(PyObject *module, PyObject *arguments)
{
    PyObject *into;
    Py_buffer data, target;
    Region region;
    Outcome outcome = UNSUPPORTED;
    int orientation, flip, is_set;
    float *s = region.scale, *b = region.bias;

    (void)module;
    memset(&region, 0, sizeof region);
    if (!PyArg_ParseTuple(arguments, "y*O(ii)(dddd)p(ii)ipp((fff)(fff)):decode", &data, &into,
                          &region.image_width, &region.image_height, &region.left, &region.top,
                          &region.right, &region.bottom, &region.inside, &region.out_height,
                          &region.out_width, &orientation, &flip, &region.reduce, s, s + 1, s + 2,
                          b, b + 1, b + 2))
        return NULL;
    if (PyObject_GetBuffer(into, &target, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)) {
        PyBuffer_Release(&data);
        return NULL;
    }
    is_set = region.out_width > 0 && region.out_height > 0 &&
             region.out_height <= PIXELS / region.out_width && orientation >= 1 && orientation <= 8;
    if (!is_set)
        PyErr_SetString(PyExc_ValueError, "the size or the orientation is out of bounds");
    else if ((is_set = set_target(&region, &target) == 0)) {
        turn(&region, orientation, flip);
        Py_BEGIN_ALLOW_THREADS
        outcome = decode_region(data.buf, (size_t)data.len, &region);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&target);
    return is_set ? told(outcome, &region) : NULL;
}

static PyMethodDef methods[] = {
    {"decode", decode, METH_VARARGS, "Decode a region of a JPEG file into `target`."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "pipeline.native.jpeg", .m_size = -1, .m_methods = methods};

#define TEXT(value) #value
#define VERSION(value) TEXT(value)

PyMODINIT_FUNC PyInit_jpeg(void)
{
    PyObject *module = PyModule_Create(&definition);

    unsupported = PyErr_NewException("pipeline.native.jpeg.Unsupported", PyExc_ValueError, NULL);
    damaged = PyErr_NewException("pipeline.native.jpeg.Damaged", PyExc_ValueError, NULL);
    if (!module || PyModule_AddObjectRef(module, "Unsupported", unsupported) ||
        PyModule_AddObjectRef(module, "Damaged", damaged) ||
        PyModule_AddStringConstant(module, "library",
                                   "libjpeg-turbo " VERSION(LIBJPEG_TURBO_VERSION)))
        return NULL;
    return module;
}
