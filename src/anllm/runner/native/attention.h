/* Attention of many tokens, each over its own slot and length, which are read in place; and the writing of their K/V.

   A unit is one K/V head and the queries of a few tokens of one sequence, with an online softmax (Milakov and Gimelshein,
   arXiv:1805.02867) over blocks of keys. */

#pragma once

#include <math.h>
#include <string.h>

#include "task.h"
#include "vectors.h"

#define KEYS 64       /* of a block: a multiple of PANEL */
#define MAX_QUERIES 96 /* rows of a unit: tokens, times queries that share a K/V head */
#define MAX_DIM 256
#define FEW_QUERIES 8 /* up to here each product of a query and a key is summed by itself */
#define MASKED -1e30f

/* Tokens [first, first + count) of the step, at positions from `position` on in a slot of a size class. */
struct group {
  int32_t size_class, slot, position, capacity, first, count;
};

/* Behind it: for each size class the addresses of its K and V slabs, float32 [slots, kv_heads, capacity, dim]; the groups;
   if has_sinks, a float32 for each head; if has_norm, the weights of the RMS norms of queries and of keys, float32 [dim] each;
   if num_pairs, for each token the cosines and sines by which so many pairs of each query and key are turned (arXiv:2104.09864),
   float32 [2, num_pairs].

   The rows of `a` are a token's queries [heads, dim] and, if has_kv, its keys [kv_heads, dim] and values [kv_heads,
   value_dim]; those of c its outputs [heads, value_dim]. Norms and turning want has_kv, and value_dim as large as dim. */
struct attention {
  uint32_t magic[4];
  uint32_t kind, heads, kv_heads, dim, value_dim, num_groups, num_classes, window, has_kv, has_sinks;
  float scale;
  uint32_t num_tokens, num_pairs, is_traditional, has_norm;
  float eps;
  uint32_t padding[4]; /* what follows lies at a multiple of 8 bytes */
};

struct slabs {
  float *keys, *values;
};

INLINE const struct slabs *slabs_of(const struct attention *t) { return (const struct slabs *)(t + 1); }
INLINE const struct group *groups_of(const struct attention *t) { return (const struct group *)(slabs_of(t) + t->num_classes); }
INLINE const float *sinks_of(const struct attention *t) { return (const float *)(groups_of(t) + t->num_groups); }
INLINE const float *norms_of(const struct attention *t) { return sinks_of(t) + (t->has_sinks ? t->heads : 0); }
INLINE const float *turns_of(const struct attention *t, long token) {
  return norms_of(t) + (t->has_norm ? 2 * t->dim : 0) + token * 2 * t->num_pairs;
}

/* One query, or one key: its norm, and its pairs turned by the token's position. from and to may be the same. */
static void prepare_head(const struct attention *what, const float *from, float *to, const float *weight, long token) {
  const int dim = what->dim, pairs = what->num_pairs;
  const float *cosines = turns_of(what, token), *sines = cosines + pairs;
  float factor = 1;
  if (what->has_norm) {
    vec squares = (vec){0};
    for (int i = 0; i < dim; i += LANES) squares += *(const vec *)(from + i) * *(const vec *)(from + i);
    factor = 1 / sqrtf(sum_of_lanes(squares) / dim + what->eps);
  }
  for (int i = 0; i < dim; i += LANES) {
    vec x = factor * *(const vec *)(from + i);
    if (what->has_norm) x *= *(const vec *)(weight + i);
    *(vec *)(to + i) = x;
  }
  if (what->is_traditional) {
    for (int i = 0; i < pairs; i++) {
      const float x = to[2 * i], y = to[2 * i + 1];
      to[2 * i] = x * cosines[i] - y * sines[i];
      to[2 * i + 1] = x * sines[i] + y * cosines[i];
    }
    return;
  }
  int i = 0;
  for (; i + LANES <= pairs; i += LANES) {
    const vec x = *(const vec *)(to + i), y = *(const vec *)(to + pairs + i);
    const vec cosine = *(const vec *)(cosines + i), sine = *(const vec *)(sines + i);
    *(vec *)(to + i) = x * cosine - y * sine;
    *(vec *)(to + pairs + i) = x * sine + y * cosine;
  }
  for (; i < pairs; i++) {
    const float x = to[i], y = to[pairs + i];
    to[i] = x * cosines[i] - y * sines[i];
    to[pairs + i] = x * sines[i] + y * cosines[i];
  }
}

INLINE int prepares_heads(const struct attention *what) { return what->num_pairs || what->has_norm; }

/* All K/V of the step, before anyone reads. */
static void write_kv(const struct task *t) {
  const struct attention *what = t->attention;
  const long dim = what->dim, value_dim = what->value_dim, heads = what->heads, kv_heads = what->kv_heads;
  for (uint32_t i = 0; i < what->num_groups; i++) {
    const struct group *g = groups_of(what) + i;
    const struct slabs *to = slabs_of(what) + g->size_class;
    for (int token = 0; token < g->count; token++)
      for (long head = 0; head < kv_heads; head++) {
        const float *row = t->a + (long)(g->first + token) * t->lda + heads * dim;
        const long line = (g->slot * kv_heads + head) * g->capacity + g->position + token;
        float *key = to->keys + line * dim;
        if (prepares_heads(what)) prepare_head(what, row + head * dim, key, norms_of(what) + dim, g->first + token);
        else memcpy(key, row + head * dim, sizeof(float) * dim);
        memcpy(to->values + line * value_dim, row + kv_heads * dim + head * value_dim, sizeof(float) * value_dim);
      }
  }
}

/* scores [count, KEYS]: queries times single keys. q: from token to token lda elements. */
INLINE void scores_of_few(const float *q, long lda, int count, const float *keys, int num_keys, int dim, float scale,
                          float *scores) {
  for (int key = 0; key < num_keys; key += 4) /* four at a time; the last one again where there are fewer */
    for (int token = 0; token < count; token++) {
      const float *query = q + token * lda;
      const float *rows[4];
      UNROLL for (int j = 0; j < 4; j++) rows[j] = keys + (long)(key + j < num_keys ? key + j : num_keys - 1) * dim;
      vec sums[4] = {(vec){0}, (vec){0}, (vec){0}, (vec){0}};
      for (int i = 0; i < dim; i += LANES) {
        const vec x = *(const vec *)(query + i);
        UNROLL for (int j = 0; j < 4; j++) sums[j] += x * *(const vec *)(rows[j] + i);
      }
      *(quad *)(scores + token * KEYS + key) =
          scale * sums_of_quads(in_quad(sums[0]), in_quad(sums[1]), in_quad(sums[2]), in_quad(sums[3]));
    }
}

/* keys [num_keys, dim] -> panels [KEYS / PANEL, dim, PANEL]; what is behind the last key is whatever was there. */
INLINE void turn_keys(const float *keys, int num_keys, int dim, float *panels) {
  for (int key = 0; key < num_keys; key += 4)
    for (int i = 0; i < dim; i += 4) {
      float *to = panels + ((long)(key / PANEL) * dim + i) * PANEL + key % PANEL;
      quad rows[4];
      UNROLL for (int j = 0; j < 4; j++) {
        const int line = key + j < num_keys ? key + j : num_keys - 1;
        rows[j] = *(const quad *)(keys + (long)line * dim + i);
      }
      transpose(rows);
      UNROLL for (int j = 0; j < 4; j++) *(quad *)(to + j * PANEL) = rows[j];
    }
}

/* Scores of one query become weights: returns by how much what was summed before is to be multiplied. */
INLINE float softmax_block(float *scores, int first, int last, int num_keys, float *most, float *sum) {
  for (int i = 0; i < first; i++) scores[i] = MASKED;
  for (int i = last; i < (num_keys + LANES - 1) / LANES * LANES; i++) scores[i] = MASKED;
  vec highest = (vec){0} + *most;
  for (int i = 0; i < num_keys; i += LANES) highest = larger(*(const vec *)(scores + i), highest);
  float top = *most;
  UNROLL for (int i = 0; i < LANES; i++) top = highest[i] > top ? highest[i] : top;
  vec total = (vec){0};
  for (int i = 0; i < num_keys; i += LANES) {
    const vec weight = exp_of_negative(*(const vec *)(scores + i) - top);
    *(vec *)(scores + i) = weight;
    total += weight;
  }
  const float before = exp_of_negative((vec){0} + (*most - top))[0];
  *sum = *sum * before + sum_of_lanes(total);
  *most = top;
  return before;
}

INLINE void multiply_columns(struct block p, int columns) { /* columns: a multiple of LANES */
  for (; columns >= PANEL; columns -= PANEL, p.b += PANEL, p.c += PANEL) multiply_block(&p, NUM_VECTORS, 0);
  for (; columns > 0; columns -= LANES, p.b += LANES, p.c += LANES) multiply_block(&p, 1, 0);
}

static void run_attention_unit(const struct task *t, int unit) {
  static _Thread_local float scores[MAX_QUERIES * KEYS], sums[MAX_QUERIES * MAX_DIM], panels[KEYS * MAX_DIM];
  const struct attention *what = t->attention;
  const struct group *g = groups_of(what) + unit / what->kv_heads;
  const int head = unit % what->kv_heads, shared = what->heads / what->kv_heads; /* queries to a K/V head */
  const int dim = what->dim, value_dim = what->value_dim, count = g->count, rows = count * shared;
  const long start = (g->slot * (long)what->kv_heads + head) * g->capacity;
  const float *keys = slabs_of(what)[g->size_class].keys + start * dim;
  const float *values = slabs_of(what)[g->size_class].values + start * value_dim;
  const float *q = t->a + (long)g->first * t->lda + (long)head * shared * dim;
  long lda = t->lda;
  if (prepares_heads(what)) { /* into the place of the outputs, which nobody else touches */
    float *to = t->c + (long)g->first * t->ldc + (long)head * shared * dim;
    for (int row = 0; row < rows; row++) {
      const long token = row / shared, j = row % shared;
      prepare_head(what, q + token * lda + j * dim, to + token * t->ldc + j * dim, norms_of(what), g->first + token);
    }
    q = to;
    lda = t->ldc;
  }
  float most[MAX_QUERIES], sum[MAX_QUERIES];
  for (int row = 0; row < rows; row++) {
    most[row] = -3e38f;
    sum[row] = 0;
  }
  for (int i = 0; i < rows * value_dim; i++) sums[i] = 0;

  const int end = g->position + count; /* of what the last token sees */
  int begin = what->window && g->position + 1 > (int)what->window ? g->position + 1 - (int)what->window : 0;
  for (int key = begin; key < end; key += KEYS) {
    const int num_keys = end - key < KEYS ? end - key : KEYS;
    const float *block_keys = keys + (long)key * dim;
    if (rows > FEW_QUERIES) turn_keys(block_keys, num_keys, dim, panels);
    for (int j = 0; j < shared; j++) { /* rows: the tokens of one query head after the other */
      const float *queries = q + j * dim;
      float *to = scores + j * count * KEYS;
      if (rows > FEW_QUERIES) {
        struct block p = {.a = queries, .b = panels, .c = to, .lda = lda, .ldb = PANEL, .ldc = KEYS, .m = count};
        p.depth = dim;
        p.alpha = what->scale;
        for (int i = 0; i < num_keys; i += PANEL, p.b += (long)dim * PANEL, p.c += PANEL) multiply_block(&p, NUM_VECTORS, 0);
      } else {
        scores_of_few(queries, lda, count, block_keys, num_keys, dim, what->scale, to);
      }
      for (int token = 0; token < count; token++) {
        const int row = j * count + token, position = g->position + token;
        const int seen = position + 1 - key, hidden = what->window ? seen - (int)what->window : 0;
        const float before = softmax_block(to + token * KEYS, hidden < 0 ? 0 : hidden < num_keys ? hidden : num_keys,
                                           seen < 0 ? 0 : seen < num_keys ? seen : num_keys, num_keys, &most[row], &sum[row]);
        if (before != 1)
          for (int i = 0; i < value_dim; i += LANES) *(vec *)(sums + row * value_dim + i) *= before;
      }
    }
    struct block p = {.a = scores, .b = values + (long)key * value_dim, .c = sums, .lda = KEYS, .ldb = value_dim};
    p.ldc = value_dim;
    p.m = rows;
    p.depth = num_keys;
    p.alpha = p.beta = 1;
    multiply_columns(p, value_dim);
  }
  for (int row = 0; row < rows; row++) {
    const int which = head * shared + row / count;
    float all = sum[row], factor = 1;
    if (what->has_sinks) { /* a key that every query sees, and that has no value */
      const float sink = sinks_of(what)[which], top = sink > most[row] ? sink : most[row];
      factor = exp_of_negative((vec){0} + (most[row] - top))[0];
      all = all * factor + exp_of_negative((vec){0} + (sink - top))[0];
    }
    float *to = t->c + (long)(g->first + row % count) * t->ldc + (long)which * value_dim;
    for (int i = 0; i < value_dim; i += LANES) *(vec *)(to + i) = *(vec *)(sums + row * value_dim + i) * (factor / all);
  }
}
