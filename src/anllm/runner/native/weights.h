/* Products with packed weights: as a checkpoint has them, in the order in which they are read. */

#pragma once

#include "task.h"
#include "vectors.h"

#define BLOCK 128 /* rows of a panel at a time: it and what it is multiplied with stay in the cache */

enum format { FLOAT32, BFLOAT16, FLOAT16, AFFINE4, AFFINE8 };

/* What a packed weight begins with (task.h has the magic). Behind it, for each panel: the words of each row of the panel, a
   word holding as many rows of its column as fit (float32 1, 16 bits 2, 8 bits 4, 4 bits 8), the first in its lowest bits.
   For AFFINE4 and 8 then the scales of each panel, float32 [rows / group, PANEL], and the biases likewise. */
struct weight {
  uint32_t magic[4];
  uint32_t format, group, rows, columns, panel; /* columns: a multiple of panel */
  uint32_t padding[7];
};

/* Several packed weights with the same rows, side by side. Behind it: the address of each. */
struct several {
  uint32_t magic[4];
  uint32_t kind, count;
  uint32_t padding[10];
};

INLINE int words_each(enum format format) { /* rows in a word */
  return format == FLOAT32 ? 1 : format == AFFINE4 ? 8 : format == AFFINE8 ? 4 : 2;
}

INLINE void widen_bfloat16(const uint32_t *from, float *to, int depth) {
  for (int i = 0; i < depth; i += 2, from += PANEL, to += 2 * PANEL)
    UNROLL for (int v = 0; v < PANEL; v += LANES) {
      words pair = *(const words *)(from + v);
      *(words *)(to + v) = pair << 16;
      *(words *)(to + PANEL + v) = pair & 0xffff0000u;
    }
}

INLINE vec half_to_float(words half) { /* of its lowest 16 bits; exact for all but infinities and NaN */
  vec size = (vec)((half & 0x7fff) << 13) * 0x1p112f;
  return (vec)((words)size | (half & 0x8000) << 16);
}

INLINE void widen_float16(const uint32_t *from, float *to, int depth) {
  for (int i = 0; i < depth; i += 2, from += PANEL, to += 2 * PANEL)
    UNROLL for (int v = 0; v < PANEL; v += LANES) {
      words pair = *(const words *)(from + v);
      *(vec *)(to + v) = half_to_float(pair);
      *(vec *)(to + PANEL + v) = half_to_float(pair >> 16);
    }
}

INLINE void widen_affine(const int bits, const uint32_t *from, const float *scales, const float *biases, int group,
                         float *to, int depth) {
  const int each = 32 / bits;
  for (int start = 0; start < depth; start += group, scales += PANEL, biases += PANEL)
    UNROLL for (int v = 0; v < PANEL; v += LANES) {
      const vec scale = *(const vec *)(scales + v), bias = *(const vec *)(biases + v);
      for (int i = start; i < start + group; i += each) {
        const words word = *(const words *)(from + (long)i / each * PANEL + v);
        UNROLL for (int j = 0; j < each; j++) {
          vec number = __builtin_convertvector((ints)((word >> j * bits) & ((1u << bits) - 1)), vec);
          *(vec *)(to + (long)(i + j) * PANEL + v) = number * scale + bias;
        }
      }
    }
}

/* One row and a whole panel, not by way of a widened block: a step of one sequence does little else. */
INLINE void one_row_bfloat16(const struct block *p, const uint32_t *from) {
  vec even[NUM_VECTORS], odd[NUM_VECTORS];
  UNROLL for (int v = 0; v < NUM_VECTORS; v++) even[v] = odd[v] = (vec){0};
  for (int i = 0; i < p->depth; i += 2, from += PANEL) UNROLL for (int v = 0; v < NUM_VECTORS; v++) {
      const words pair = *(const words *)(from + v * LANES);
      even[v] += p->a[i] * (vec)(pair << 16);
      odd[v] += p->a[i + 1] * (vec)(pair & 0xffff0000u);
    }
  UNROLL for (int v = 0; v < NUM_VECTORS; v++) store(p, p->c + v * LANES, even[v] + odd[v]);
}

INLINE void one_row_affine(const struct block *p, const int bits, const uint32_t *from, const float *scales,
                           const float *biases, int group) {
  const int each = 32 / bits;
  vec sums[2][NUM_VECTORS];
  UNROLL for (int v = 0; v < NUM_VECTORS; v++) sums[0][v] = sums[1][v] = (vec){0};
  for (int start = 0; start < p->depth; start += group, scales += PANEL, biases += PANEL) {
    vec scale[NUM_VECTORS], bias[NUM_VECTORS];
    UNROLL for (int v = 0; v < NUM_VECTORS; v++) {
      scale[v] = *(const vec *)(scales + v * LANES);
      bias[v] = *(const vec *)(biases + v * LANES);
    }
    for (int i = start; i < start + group; i += each, from += PANEL) UNROLL for (int v = 0; v < NUM_VECTORS; v++) {
        const words word = *(const words *)(from + v * LANES);
        UNROLL for (int j = 0; j < each; j++) {
          const vec number = __builtin_convertvector((ints)((word >> j * bits) & ((1u << bits) - 1)), vec);
          sums[j % 2][v] += p->a[i + j] * (number * scale[v] + bias[v]);
        }
      }
  }
  UNROLL for (int v = 0; v < NUM_VECTORS; v++) store(p, p->c + v * LANES, sums[0][v] + sums[1][v]);
}

/* All of a panel: c [m, PANEL] = alpha * a [m, weight rows] * panel + beta * c. */
INLINE void multiply_panel(const struct weight *w, const enum format format, int panel, struct block p) {
  static _Thread_local float wide[BLOCK * PANEL] __attribute__((aligned(64)));
  const int each = words_each(format);
  const long num_words = (long)(w->rows / each) * PANEL;
  const uint32_t *data = (const uint32_t *)(w + 1), *from = data + panel * num_words;
  const float *scales = (const float *)(data + w->columns / PANEL * num_words), *biases = scales;
  if (format == AFFINE4 || format == AFFINE8) {
    const long num_scales = (long)(w->rows / w->group) * PANEL;
    scales += panel * num_scales;
    biases = scales + w->columns / PANEL * num_scales;
  }
  if (p.m == 1 && (format == BFLOAT16 || format == AFFINE4 || format == AFFINE8)) {
    p.depth = w->rows;
    if (format == BFLOAT16) one_row_bfloat16(&p, from);
    if (format == AFFINE4) one_row_affine(&p, 4, from, scales, biases, w->group);
    if (format == AFFINE8) one_row_affine(&p, 8, from, scales, biases, w->group);
    return;
  }
  for (int i = 0; i < (int)w->rows; i += BLOCK, p.a += BLOCK, p.beta = 1) {
    p.depth = (int)w->rows - i < BLOCK ? (int)w->rows - i : BLOCK;
    p.b = format == FLOAT32 ? (const float *)from : wide;
    if (format == BFLOAT16) widen_bfloat16(from, wide, p.depth);
    if (format == FLOAT16) widen_float16(from, wide, p.depth);
    if (format == AFFINE4) widen_affine(4, from, scales, biases, w->group, wide, p.depth);
    if (format == AFFINE8) widen_affine(8, from, scales, biases, w->group, wide, p.depth);
    if (format == AFFINE4 || format == AFFINE8) {
      scales += BLOCK / w->group * PANEL;
      biases += BLOCK / w->group * PANEL;
    }
    from += BLOCK / each * PANEL;
    p.next = (const char *)from;
    multiply_block(&p, NUM_VECTORS, 4 * PANEL / each);
  }
}

static void run_weight_unit(const struct task *t, int unit) {
  const struct weight *w = t->weight;
  const int which = unit / t->num_parts; /* of all panels */
  int panel = which;
  if (w->format == SEVERAL) {
    const uint64_t *parts = (const uint64_t *)(w + 1);
    for (w = (const struct weight *)*parts; panel >= (int)(w->columns / PANEL); w = (const struct weight *)*++parts)
      panel -= w->columns / PANEL;
  }
  const long first = (long)(unit % t->num_parts) * t->part;
  struct block p = {.a = t->a + first * t->lda, .c = t->c + first * t->ldc + which * PANEL, .lda = t->lda, .ldb = PANEL, .ldc = t->ldc};
  p.m = t->m - first < t->part ? t->m - first : t->part;
  p.alpha = t->alpha;
  p.beta = t->beta;
  switch (w->format) {
    case FLOAT32: multiply_panel(w, FLOAT32, panel, p); break;
    case BFLOAT16: multiply_panel(w, BFLOAT16, panel, p); break;
    case FLOAT16: multiply_panel(w, FLOAT16, panel, p); break;
    case AFFINE4: multiply_panel(w, AFFINE4, panel, p); break;
    default: multiply_panel(w, AFFINE8, panel, p);
  }
}

