/* What the extension modules have in common: arguments about the rows of a batch, a picture each. */

#ifndef PENSTOCK_ROWS_H
#define PENSTOCK_ROWS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "resample.h"

enum { FACTS = 4, SIDES = 4, MOST_SIDE = 1 << 16, MOST_PIXELS = 1 << 26, CACHE = 4 << 20 };

typedef struct {
    Py_buffer target, facts, regions, place; /* see take_rows */
    Py_ssize_t count;                        /* of rows */
    int height, width;                       /* of each result */
    int channels_last;                       /* results are [height][width][CHANNELS] */
    int inside;                              /* whether pixels beside a region must not count */
    float scale[CHANNELS], bias[CHANNELS];   /* for floats: value * scale + bias */
} Rows;

/* Take hold of
 *     target   uint8 or float32 [count, CHANNELS, height, width]; or uint8 [count, height, width,
 *              CHANNELS] where `channels_last` is set
 *     facts    int64 [count, FACTS], of the pictures
 *     regions  float64 [count, SIDES]: left, top, right, bottom
 *     place    int64 [1], which is told which row is worked on
 * -1 with an exception set if one of them is not of its kind; nothing is held then. */
int take_rows(Rows *rows, PyObject *target, PyObject *facts, PyObject *regions, PyObject *place);
void release_rows(Rows *rows);

static inline int has_floats(const Rows *rows) { return rows->target.itemsize == sizeof(float); }

/* Whether the target is too large to be found in a core's cache when it is read. */
static inline int is_past_cache(const Rows *rows) { return rows->target.len > CACHE; }

/* Where the result of a row begins; NULL where the target is of the other type. */
uint8_t *bytes_of(const Rows *rows, Py_ssize_t row);
float *floats_of(const Rows *rows, Py_ssize_t row);

static inline const int64_t *facts_of(const Rows *rows, Py_ssize_t row)
{
    return (const int64_t *)rows->facts.buf + row * FACTS;
}

static inline const double *region_of(const Rows *rows, Py_ssize_t row)
{
    return (const double *)rows->regions.buf + row * SIDES;
}

static inline void tell_place(const Rows *rows, Py_ssize_t row)
{
    *(volatile int64_t *)rows->place.buf = row;
}

#endif
