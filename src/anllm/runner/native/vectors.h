/* Vectors of the processor that this is compiled for, and products of small blocks. */

#pragma once

#include <stdint.h>

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#define NUM_VECTORS 4
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#define NUM_VECTORS 2
#else
#define VECTOR_BYTES 16
#define NUM_VECTORS 4
#endif
#define LANES (VECTOR_BYTES / 4)
#define PANEL (LANES * NUM_VECTORS) /* columns of a tile */
#define MAX_TILE 6                  /* rows of a tile: its sums fill the registers */

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

typedef float vec __attribute__((vector_size(VECTOR_BYTES), aligned(4)));
typedef uint32_t words __attribute__((vector_size(VECTOR_BYTES), aligned(4)));
typedef int32_t ints __attribute__((vector_size(VECTOR_BYTES), aligned(4)));
typedef float quad __attribute__((vector_size(16), aligned(4)));

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(x, y, a, b, c, d) __builtin_shufflevector(x, y, a, b, c, d)
#else
typedef int32_t places __attribute__((vector_size(16)));
#define SHUFFLE(x, y, a, b, c, d) __builtin_shuffle(x, y, (places){a, b, c, d})
#endif

INLINE quad in_quad(vec x) { /* four sums of lanes */
  const union {
    vec whole;
    quad parts[LANES / 4];
  } of = {x};
  quad sum = of.parts[0];
  UNROLL for (int i = 1; i < LANES / 4; i++) sum += of.parts[i];
  return sum;
}

INLINE float sum_of_lanes(vec x) {
  const quad sum = in_quad(x);
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

INLINE quad sums_of_quads(quad a, quad b, quad c, quad d) {
  const quad ab = SHUFFLE(a, b, 0, 4, 1, 5) + SHUFFLE(a, b, 2, 6, 3, 7);
  const quad cd = SHUFFLE(c, d, 0, 4, 1, 5) + SHUFFLE(c, d, 2, 6, 3, 7);
  return SHUFFLE(ab, cd, 0, 1, 4, 5) + SHUFFLE(ab, cd, 2, 3, 6, 7);
}

INLINE void transpose(quad *x) { /* 4 of 4 */
  const quad a = SHUFFLE(x[0], x[1], 0, 4, 1, 5), b = SHUFFLE(x[0], x[1], 2, 6, 3, 7);
  const quad c = SHUFFLE(x[2], x[3], 0, 4, 1, 5), d = SHUFFLE(x[2], x[3], 2, 6, 3, 7);
  x[0] = SHUFFLE(a, c, 0, 1, 4, 5);
  x[1] = SHUFFLE(a, c, 2, 3, 6, 7);
  x[2] = SHUFFLE(b, d, 0, 1, 4, 5);
  x[3] = SHUFFLE(b, d, 2, 3, 6, 7);
}

INLINE vec larger(vec x, vec y) { /* y where either is not a number */
  const ints which = x > y;
  return (vec)(((ints)x & which) | ((ints)y & ~which));
}

/* exp(x) for x <= 0, to a relative 2e-7; 0 below -87. By powers of two and the series of what is left (Cody and Waite). */
INLINE vec exp_of_negative(vec x) {
  const vec shift = (vec){0} + 12582912.0f; /* 1.5 * 2^23: added and taken away, it rounds to whole numbers */
  const vec whole = (x * 1.44269504088896341f + shift) - shift;
  const vec rest = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
  vec p = rest * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * rest + 8.3334519073e-3f;
  p = p * rest + 4.1665795894e-2f;
  p = p * rest + 1.6666665459e-1f;
  p = p * rest + 5.0000001201e-1f;
  p = p * rest * rest + rest + 1.0f;
  const ints exponent = __builtin_convertvector(whole, ints) + 127;
  return (vec)((ints)(p * (vec)(exponent << 23)) & ~(x < -87.0f));
}

/* c [m, PANEL or less] = alpha * a [m, depth] * b [depth, …] + beta * c; lda, ldb, ldc: elements from row to row. c is not
   read where beta is 0. While it goes on, `step` bytes of what is needed next come into the cache with each row of b. */
struct block {
  const float *a, *b;
  float *c;
  const char *next;
  long lda, ldb, ldc;
  int m, depth;
  float alpha, beta;
};

INLINE void store(const struct block *p, float *to, vec sum) {
  *(vec *)to = p->beta == 0 ? p->alpha * sum : p->alpha * sum + p->beta * *(vec *)to;
}

INLINE void tile(const struct block *p, const int first, const int rows, const int vectors, const int step) {
  const float *a = p->a + first * p->lda, *b = p->b;
  const long lda = p->lda, ldb = p->ldb;
  const int depth = p->depth;
  const char *next = p->next;
  vec sums[MAX_TILE][NUM_VECTORS];
  UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < vectors; v++) sums[r][v] = (vec){0};
  for (int i = 0; i < depth; i++, b += ldb, next += step) {
    UNROLL for (int line = 0; line < step; line += 64) __builtin_prefetch(next + line, 0, 2);
    vec row[NUM_VECTORS];
    UNROLL for (int v = 0; v < vectors; v++) row[v] = *(const vec *)(b + v * LANES);
    UNROLL for (int r = 0; r < rows; r++) {
      const float x = a[r * lda + i];
      UNROLL for (int v = 0; v < vectors; v++) sums[r][v] += x * row[v];
    }
  }
  UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < vectors; v++)
    store(p, p->c + (first + r) * p->ldc + v * LANES, sums[r][v]);
}

INLINE void some_rows(const struct block *p, int first, int rows, const int vectors, const int step) {
  switch (rows) {
    case 1: tile(p, first, 1, vectors, step); break;
    case 2: tile(p, first, 2, vectors, step); break;
    case 3: tile(p, first, 3, vectors, step); break;
    case 4: tile(p, first, 4, vectors, step); break;
    case 5: tile(p, first, 5, vectors, step); break;
    default: tile(p, first, 6, vectors, step);
  }
}

/* All rows of it, in tiles of nearly equal height. vectors: columns, in vectors. */
INLINE void multiply_block(const struct block *p, const int vectors, const int step) {
  const int num_tiles = (p->m + MAX_TILE - 1) / MAX_TILE;
  int row = p->m / num_tiles;
  some_rows(p, 0, row, vectors, step);
  for (int i = 1, rows; i < num_tiles; i++, row += rows) {
    rows = (p->m - row) / (num_tiles - i);
    some_rows(p, row, rows, vectors, 0);
  }
}
