/* Rows of tokens written into a batch, and where documents stand in it, without the interpreter's
 * lock. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

enum { MOST = 5 };

/* Take hold of contiguous arrays of one dimension: int64, but for those of `other`, a bit each. -1
 * with an exception set if one is not of its kind; nothing is held then. */
static int take(PyObject *const *from, Py_buffer *held, int count, int writable, int other)
{
    for (int one = 0; one < count; one++) {
        int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable >> one & 1 ? PyBUF_WRITABLE : 0);
        int failed = PyObject_GetBuffer(from[one], &held[one], flags);
        const char *kind = failed ? NULL : held[one].format;

        if (!failed && held[one].ndim == 1 && kind && strlen(kind) == 1 &&
            strchr(other >> one & 1 ? "bBhHiIlLqQ" : "lq", *kind) &&
            (other >> one & 1 || held[one].itemsize == 8))
            continue;
        for (int done = 0; done < one + !failed; done++)
            PyBuffer_Release(&held[done]);
        if (!failed)
            PyErr_SetString(PyExc_ValueError, "an array is of another type or shape than it has to be");
        return -1;
    }
    return 0;
}

static void release(Py_buffer *held, int count)
{
    for (int one = 0; one < count; one++)
        PyBuffer_Release(&held[one]);
}

#define COPY(type)                                                                                 \
    do {                                                                                           \
        const type *tokens = (const type *)source + first;                                         \
        for (int64_t one = 0; one < count; one++)                                                  \
            into[one] = (int64_t)tokens[one];                                                      \
    } while (0)

static void copy(int64_t *into, const void *source, char kind, Py_ssize_t width, int64_t first,
                 int64_t count)
{
    int is_signed = strchr("bhilq", kind) != NULL;

    if (width == 1 && is_signed)
        COPY(int8_t);
    else if (width == 1)
        COPY(uint8_t);
    else if (width == 2 && is_signed)
        COPY(int16_t);
    else if (width == 2)
        COPY(uint16_t);
    else if (width == 4 && is_signed)
        COPY(int32_t);
    else if (width == 4)
        COPY(uint32_t);
    else
        COPY(int64_t); /* of uint64 the same bits, as numpy's cast gives them */
}

static int gather_all(const Py_buffer *held)
{
    int64_t *into = held[0].buf;
    const int64_t *places = held[2].buf, *firsts = held[3].buf, *counts = held[4].buf;
    int64_t room = held[0].shape[0], there = held[1].shape[0];
    char kind = held[1].format[0];

    for (Py_ssize_t row = 0; row < held[2].shape[0]; row++) {
        int64_t place = places[row], first = firsts[row], count = counts[row];
        if (count < 0 || place < 0 || first < 0 || count > room || count > there ||
            place > room - count || first > there - count)
            return -1;
        copy(into + place, held[1].buf, kind, held[1].itemsize, first, count);
    }
    return 0;
}

static PyObject *gather(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    Py_buffer held[MOST];
    int failed;

    (void)module;
    if (count != 5) {
        PyErr_SetString(PyExc_TypeError, "gather takes 5 arguments");
        return NULL;
    }
    if (take(arguments, held, 5, 1, 2))
        return NULL;
    if (held[3].shape[0] != held[2].shape[0] || held[4].shape[0] != held[2].shape[0])
        failed = 1;
    else {
        Py_BEGIN_ALLOW_THREADS
        failed = gather_all(held);
        Py_END_ALLOW_THREADS
    }
    release(held, 5);
    if (!failed)
        Py_RETURN_NONE;
    PyErr_SetString(PyExc_ValueError, "a row is out of bounds, or arrays differ in their length");
    return NULL;
}

static int lay_out_all(const Py_buffer *held)
{
    int64_t *positions = held[0].buf, *documents = held[1].buf;
    const int64_t *edges = held[2].buf, *ids = held[3].buf;
    int64_t room = held[0].shape[0];

    for (Py_ssize_t one = 0; one < held[3].shape[0]; one++) {
        int64_t start = edges[one], stop = edges[one + 1], id = ids[one];
        if (start < 0 || stop < start || stop > room)
            return -1;
        for (int64_t at = start; at < stop; at++)
            positions[at] = at - start;
        for (int64_t at = start; at < stop; at++)
            documents[at] = id;
    }
    return 0;
}

static PyObject *lay_out(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    Py_buffer held[MOST];
    int failed;

    (void)module;
    if (count != 4) {
        PyErr_SetString(PyExc_TypeError, "lay_out takes 4 arguments");
        return NULL;
    }
    if (take(arguments, held, 4, 3, 0))
        return NULL;
    if (held[1].shape[0] != held[0].shape[0] || held[2].shape[0] != held[3].shape[0] + 1)
        failed = 1;
    else {
        Py_BEGIN_ALLOW_THREADS
        failed = lay_out_all(held);
        Py_END_ALLOW_THREADS
    }
    release(held, 4);
    if (!failed)
        Py_RETURN_NONE;
    PyErr_SetString(PyExc_ValueError, "a document is out of bounds, or arrays differ in length");
    return NULL;
}

static PyMethodDef methods[] = {
    {"gather", (PyCFunction)(void (*)(void))gather, METH_FASTCALL, "Copy rows into a batch."},
    {"lay_out", (PyCFunction)(void (*)(void))lay_out, METH_FASTCALL, "Number tokens."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "penstock.native.tokens", .m_size = -1, .m_methods = methods};

PyMODINIT_FUNC PyInit_tokens(void) { return PyModule_Create(&definition); }
