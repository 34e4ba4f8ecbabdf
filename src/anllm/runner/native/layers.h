/* What stands between the products of a layer, for each row by itself. */

#pragma once

#include <math.h>

#include "task.h"
#include "vectors.h"

/* RMS_NORM: behind it its weight, float32 [width]; rows of a and of c have that width. SWIGLU: a row of a has gate and up, of
   that width each. */
struct layer {
  uint32_t magic[4];
  uint32_t kind, width;
  float eps;
  uint32_t padding[9];
};

INLINE void rms_norm(const float *from, const float *weight, float *to, int width, float eps) {
  vec squares = (vec){0};
  float sum = 0;
  int i = 0;
  for (; i + LANES <= width; i += LANES) squares += *(const vec *)(from + i) * *(const vec *)(from + i);
  for (; i < width; i++) sum += from[i] * from[i];
  const float factor = 1 / sqrtf((sum + sum_of_lanes(squares)) / width + eps);
  for (i = 0; i + LANES <= width; i += LANES) *(vec *)(to + i) = factor * *(const vec *)(from + i) * *(const vec *)(weight + i);
  for (; i < width; i++) to[i] = factor * from[i] * weight[i];
}

INLINE vec silu(vec x) { /* x times its sigmoid */
  const ints is_negative = x < 0;
  const vec e = exp_of_negative((vec)((ints)x | (int32_t)0x80000000)); /* of -|x| */
  return x * (vec)(((ints)e & is_negative) | ((ints)((vec){0} + 1.0f) & ~is_negative)) / (1 + e);
}

INLINE void swiglu(const float *from, float *to, int width) {
  int i = 0;
  for (; i + LANES <= width; i += LANES) *(vec *)(to + i) = silu(*(const vec *)(from + i)) * *(const vec *)(from + width + i);
  for (; i < width; i++) to[i] = silu((vec){0} + from[i])[0] * from[width + i];
}

static void run_layer_unit(const struct task *t, int unit) {
  const struct layer *what = t->layer;
  const int first = unit * t->part, last = first + t->part < t->m ? first + t->part : t->m;
  for (long row = first; row < last; row++) {
    const float *from = t->a + row * t->lda;
    float *to = t->c + row * t->ldc;
    if (what->kind == RMS_NORM) rms_norm(from, (const float *)(what + 1), to, what->width, what->eps);
    else swiglu(from, to, what->width);
  }
}
