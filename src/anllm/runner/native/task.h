/* What cblas_sgemm was called for, and how it is cut into units. */

#pragma once

#include <stdint.h>

struct weight;
struct attention;
struct layer;

enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };

/* What a matrix begins with that is none. No matrix of numbers does: the words are those of four kinds of NaN. The fifth says
   what it is: a format of weights.h, or one of these. */
static const uint32_t MAGIC[4] = {0x7fc0a11a, 0xffd3b22b, 0x7fe6c33c, 0xfff9d44d};
enum { SEVERAL = 63, ATTENTION = 64, RMS_NORM = 65, SWIGLU = 66, NOTHING = 67 };

/* c = alpha * a * b + beta * c, row-major. weight, attention or layer: what b is where it is no plain matrix; then a is not
   transposed. A unit of a weight is a panel of it and `part` rows, num_parts for each panel; of a plain matrix and of a layer
   `part` rows or, if by_columns, columns. */
struct task {
  int ta, tb, m, n, k, lda, ldb, ldc;
  float alpha, beta;
  const float *a, *b;
  float *c;
  const struct weight *weight;
  const struct attention *attention;
  const struct layer *layer;
  int is_nothing, by_columns, part, num_parts, num_units;
};
