#include "rows.h"

#include <string.h>

static int is_of(const Py_buffer *buffer, const char *formats, Py_ssize_t itemsize)
{
    return buffer->itemsize == itemsize && buffer->format && strlen(buffer->format) == 1 &&
           strchr(formats, buffer->format[0]);
}

static int take(PyObject *from, Py_buffer *buffer, int flags)
{
    return PyObject_GetBuffer(from, buffer, flags | PyBUF_C_CONTIGUOUS | PyBUF_FORMAT);
}

static int is_sound_target(Rows *rows)
{
    const Py_buffer *target = &rows->target;
    int first = rows->channels_last ? 1 : 2;

    if (target->ndim != 4 || (!is_of(target, "B", 1) && !is_of(target, "f", sizeof(float))) ||
        target->shape[rows->channels_last ? 3 : 1] != CHANNELS || target->shape[first] < 1 ||
        target->shape[first] > MOST_SIDE || target->shape[first + 1] < 1 ||
        target->shape[first + 1] > MOST_SIDE ||
        target->shape[first] > MOST_PIXELS / target->shape[first + 1])
        return 0;
    rows->count = target->shape[0];
    rows->height = (int)target->shape[first];
    rows->width = (int)target->shape[first + 1];
    return !rows->channels_last || !has_floats(rows);
}

static int is_table(const Rows *rows, const Py_buffer *table, const char *formats, Py_ssize_t columns)
{
    return is_of(table, formats, 8) && table->ndim == 2 && table->shape[0] == rows->count &&
           table->shape[1] == columns;
}

int take_rows(Rows *rows, PyObject *target, PyObject *facts, PyObject *regions, PyObject *place)
{
    if (take(target, &rows->target, PyBUF_WRITABLE) || take(facts, &rows->facts, 0) ||
        take(regions, &rows->regions, 0) || take(place, &rows->place, PyBUF_WRITABLE)) {
        release_rows(rows);
        return -1;
    }
    if (is_sound_target(rows) && is_table(rows, &rows->facts, "lq", FACTS) &&
        is_table(rows, &rows->regions, "d", SIDES) && is_of(&rows->place, "lq", 8) &&
        rows->place.len == 8)
        return 0;
    release_rows(rows);
    PyErr_SetString(PyExc_ValueError, "the target, the facts, the regions or the place are of "
                                      "another type or shape than they have to be");
    return -1;
}

void release_rows(Rows *rows)
{
    PyBuffer_Release(&rows->target); /* nothing happens to one that was not taken */
    PyBuffer_Release(&rows->facts);
    PyBuffer_Release(&rows->regions);
    PyBuffer_Release(&rows->place);
}

static Py_ssize_t start_of(const Rows *rows, Py_ssize_t row)
{
    return row * CHANNELS * rows->height * rows->width;
}

uint8_t *bytes_of(const Rows *rows, Py_ssize_t row)
{
    return has_floats(rows) ? NULL : (uint8_t *)rows->target.buf + start_of(rows, row);
}

float *floats_of(const Rows *rows, Py_ssize_t row)
{
    return has_floats(rows) ? (float *)rows->target.buf + start_of(rows, row) : NULL;
}
