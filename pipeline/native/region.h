/* A region of a JPEG file, resampled into an image of a given size. */

#ifndef PENSTOCK_REGION_H
#define PENSTOCK_REGION_H

#include <stddef.h>
#include <stdint.h>

#include "resample.h"

typedef enum {
    DECODED,      /* `warnings` says how much of it was damaged */
    UNSUPPORTED,  /* a kind of JPEG, or a size, that this decoder leaves to others */
    DAMAGED,      /* no image could be made of it */
    NO_MEMORY
} Outcome;

typedef struct {
    int image_width, image_height;         /* as the file stores it; another size is UNSUPPORTED */
    double left, top, right, bottom;       /* of the region, inside the image */
    int inside;                            /* whether pixels beside the region must not count */
    int out_width, out_height;             /* of the result, turned as the file stores it */
    int reduce;                            /* whether the DCT may decode at 1/2, 1/4 or 1/8 */
    ptrdiff_t plane, row, column;          /* from one element to the next, of the result */
    uint8_t *bytes;                        /* where element (0, 0) of channel 0 goes; or NULL: */
    float *floats;                         /* the same, for value * scale + bias */
    float scale[CHANNELS], bias[CHANNELS];
    int past_cache;                        /* see write_floats */
    long warnings;                         /* counted by the decoder */
} Region;

Outcome decode_region(const uint8_t *data, size_t size, Region *region);

#endif
