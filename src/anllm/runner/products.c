/* Matrix products for the CPU backend: what MLX finds when it looks for cblas_sgemm.

   Plain matrices go on to the BLAS that was given to set_blas. A weight that was packed at load (cpu_weights.py) is known
   by the words at its beginning, and is multiplied here: by columns in panels that are read from end to end, in the type in
   which it was stored, widened to float32 a block at a time. Activations and sums are float32.

   One pool of threads does both. Each job is cut into units that whoever is free takes, so that a thread which the system
   has stopped holds up one unit and not half of the product. */

#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <linux/futex.h>

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
#define PANEL (LANES * NUM_VECTORS) /* columns that lie together */
#define BLOCK 128                   /* rows of a panel at a time: it and what it is multiplied with stay in the cache */
#define MAX_TILE 6                  /* rows of a tile: its sums fill the registers */

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

typedef float vec __attribute__((vector_size(VECTOR_BYTES), aligned(4)));
typedef uint32_t words __attribute__((vector_size(VECTOR_BYTES), aligned(4)));
typedef int32_t ints __attribute__((vector_size(VECTOR_BYTES), aligned(4)));

/* -- packed weights ------------------------------------------------------------------------------------------------ */

enum format { FLOAT32, BFLOAT16, FLOAT16, AFFINE4, AFFINE8 };

/* What a packed weight begins with. No matrix of numbers does: the words are those of four kinds of NaN. Behind it, for each
   panel: the words of each row of the panel, a word holding as many rows of its column as fit (float32 1, 16 bits 2, 8 bits
   4, 4 bits 8), the first in its lowest bits. For AFFINE4 and 8 then the scales of each panel, float32 [rows / group,
   PANEL], and the biases likewise. */
struct weight {
  uint32_t magic[4];
  uint32_t format, group, rows, columns, panel; /* columns: a multiple of panel */
  uint32_t padding[7];
};

const uint32_t anllm_magic[4] = {0x7fc0a11a, 0xffd3b22b, 0x7fe6c33c, 0xfff9d44d};

INLINE const struct weight *as_weight(const void *matrix) { /* 0 if it is none; matrix: at least 16 bytes */
  const struct weight *w = matrix;
  for (int i = 0; i < 4; i++)
    if (w->magic[i] != anllm_magic[i]) return 0;
  return w;
}

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

/* -- products of one panel ----------------------------------------------------------------------------------------- */

/* c [m, PANEL] = alpha * a [m, depth] * b [depth, PANEL] + beta * c; lda, ldc: elements from row to row. c is not read
   where beta is 0. While it goes on, `step` bytes of what is needed next come into the cache with each row of b. */
struct block {
  const float *a, *b;
  float *c;
  const char *next;
  long lda, ldc;
  int m, depth;
  float alpha, beta;
};

INLINE void store(const struct block *p, float *to, vec sum) {
  *(vec *)to = p->beta == 0 ? p->alpha * sum : p->alpha * sum + p->beta * *(vec *)to;
}

INLINE void tile(const struct block *p, const int first, const int rows, const int step) {
  const float *a = p->a + first * p->lda, *b = p->b;
  const long lda = p->lda;
  const int depth = p->depth;
  const char *next = p->next;
  vec sums[MAX_TILE][NUM_VECTORS];
  UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < NUM_VECTORS; v++) sums[r][v] = (vec){0};
  for (int i = 0; i < depth; i++, b += PANEL, next += step) {
    UNROLL for (int line = 0; line < step; line += 64) __builtin_prefetch(next + line, 0, 2);
    vec row[NUM_VECTORS];
    UNROLL for (int v = 0; v < NUM_VECTORS; v++) row[v] = *(const vec *)(b + v * LANES);
    UNROLL for (int r = 0; r < rows; r++) {
      const float x = a[r * lda + i];
      UNROLL for (int v = 0; v < NUM_VECTORS; v++) sums[r][v] += x * row[v];
    }
  }
  UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < NUM_VECTORS; v++)
    store(p, p->c + (first + r) * p->ldc + v * LANES, sums[r][v]);
}

INLINE void some_rows(const struct block *p, int first, int rows, const int step) {
  switch (rows) {
    case 1: tile(p, first, 1, step); break;
    case 2: tile(p, first, 2, step); break;
    case 3: tile(p, first, 3, step); break;
    case 4: tile(p, first, 4, step); break;
    case 5: tile(p, first, 5, step); break;
    default: tile(p, first, 6, step);
  }
}

INLINE void multiply_block(const struct block *p, const int step) {
  const int num_tiles = (p->m + MAX_TILE - 1) / MAX_TILE; /* of nearly equal height */
  int row = p->m / num_tiles;
  some_rows(p, 0, row, step);
  for (int i = 1, rows; i < num_tiles; i++, row += rows) {
    rows = (p->m - row) / (num_tiles - i);
    some_rows(p, row, rows, 0);
  }
}

/* One row and a whole panel of bfloat16, not by way of a widened block: a step of one sequence does little else. */
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
  if (format == BFLOAT16 && p.m == 1) {
    p.depth = w->rows;
    one_row_bfloat16(&p, from);
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
    multiply_block(&p, 4 * PANEL / each);
  }
}

/* -- jobs ---------------------------------------------------------------------------------------------------------- */

typedef void sgemm32(int, int, int, int, int, int, float, const float *, int, const float *, int, float, float *, int);
typedef void sgemm64(int, int, int, int64_t, int64_t, int64_t, float, const float *, int64_t, const float *, int64_t,
                     float, float *, int64_t);
typedef void sgemv32(int, int, int, int, float, const float *, int, const float *, int, float, float *, int);
typedef void sgemv64(int, int, int64_t, int64_t, float, const float *, int64_t, const float *, int64_t, float, float *,
                     int64_t);

enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };

/* An sgemm, row-major. weight: b where that is packed, and then a is not transposed. A unit is a panel of it and `part`
   rows, num_parts for each panel; without a weight `part` rows or, if by_columns, columns. */
struct job {
  int ta, tb, m, n, k, lda, ldb, ldc;
  float alpha, beta;
  const float *a, *b;
  float *c;
  const struct weight *weight;
  int by_columns, part, num_parts, num_units;
};

static sgemm32 *blas_sgemm32;
static sgemm64 *blas_sgemm64;
static sgemv32 *blas_sgemv32;
static sgemv64 *blas_sgemv64;

static void call_blas(const struct job *j) {
  if (j->m == 1 && (blas_sgemv32 || blas_sgemv64)) { /* a matrix-vector product packs nothing: twice as quick */
    const int plain = j->tb == NO_TRANS, rows = plain ? j->k : j->n, columns = plain ? j->n : j->k;
    const int trans = plain ? TRANS : NO_TRANS, step = j->ta == NO_TRANS ? 1 : j->lda;
    if (blas_sgemv64) blas_sgemv64(ROW_MAJOR, trans, rows, columns, j->alpha, j->b, j->ldb, j->a, step, j->beta, j->c, 1);
    else blas_sgemv32(ROW_MAJOR, trans, rows, columns, j->alpha, j->b, j->ldb, j->a, step, j->beta, j->c, 1);
  } else if (blas_sgemm64) {
    blas_sgemm64(ROW_MAJOR, j->ta, j->tb, j->m, j->n, j->k, j->alpha, j->a, j->lda, j->b, j->ldb, j->beta, j->c, j->ldc);
  } else {
    blas_sgemm32(ROW_MAJOR, j->ta, j->tb, j->m, j->n, j->k, j->alpha, j->a, j->lda, j->b, j->ldb, j->beta, j->c, j->ldc);
  }
}

static void run_packed(const struct job *j, int unit) {
  const struct weight *w = j->weight;
  const int panel = unit / j->num_parts;
  const long first = (long)(unit % j->num_parts) * j->part;
  struct block p = {.a = j->a + first * j->lda, .c = j->c + first * j->ldc + panel * PANEL, .lda = j->lda, .ldc = j->ldc};
  p.m = j->m - first < j->part ? j->m - first : j->part;
  p.alpha = j->alpha;
  p.beta = j->beta;
  switch (w->format) {
    case FLOAT32: multiply_panel(w, FLOAT32, panel, p); break;
    case BFLOAT16: multiply_panel(w, BFLOAT16, panel, p); break;
    case FLOAT16: multiply_panel(w, FLOAT16, panel, p); break;
    case AFFINE4: multiply_panel(w, AFFINE4, panel, p); break;
    default: multiply_panel(w, AFFINE8, panel, p);
  }
}

static void run_plain(const struct job *whole, int unit) {
  struct job j = *whole;
  const long first = (long)unit * j.part;
  if (j.by_columns) {
    j.n = j.n - first < j.part ? j.n - first : j.part;
    j.b += j.tb == NO_TRANS ? first : first * j.ldb;
    j.c += first;
  } else {
    j.m = j.m - first < j.part ? j.m - first : j.part;
    j.a += j.ta == NO_TRANS ? first * j.lda : first;
    j.c += first * j.ldc;
  }
  call_blas(&j);
}

static void run_unit(const struct job *j, int unit) {
  if (j->weight) run_packed(j, unit);
  else run_plain(j, unit);
}

/* -- the pool ------------------------------------------------------------------------------------------------------ */

#define SPINS 5000 /* looks at what is waited for, 0.1 ms or so, before the system is asked to wake one up */
#define FIELD 20
#define LOW ((1u << FIELD) - 1)

static atomic_uint_fast64_t ticket; /* number of the job, its units, the next unit: 24, 20 and 20 bits */
static atomic_uint published;       /* jobs so far */
static atomic_int num_done, num_sleeping, num_threads = 1;
static int num_started;
static struct job current;
static pthread_mutex_t busy = PTHREAD_MUTEX_INITIALIZER;

INLINE void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/* A unit that was taken belongs to the job in `current`, which stays until all its units are done. */
static void take_units(void) {
  for (;;) {
    uint64_t now = atomic_load(&ticket);
    if ((now & LOW) >= (now >> FIELD & LOW)) return;
    now = atomic_fetch_add(&ticket, 1);
    if ((now & LOW) >= (now >> FIELD & LOW)) return;
    run_unit(&current, now & LOW);
    atomic_fetch_add(&num_done, 1);
  }
}

static void *work(void *number) {
  unsigned seen = 0;
  for (;;) {
    for (int spins = 0; atomic_load(&published) == seen;) {
      if (++spins < SPINS) {
        relax();
        continue;
      }
      atomic_fetch_add(&num_sleeping, 1);
      syscall(SYS_futex, &published, FUTEX_WAIT_PRIVATE, seen, 0, 0, 0);
      atomic_fetch_sub(&num_sleeping, 1);
      spins = 0;
    }
    seen = atomic_load(&published);
    if ((long)number < atomic_load(&num_threads)) take_units();
  }
  return 0;
}

static void run_job(const struct job *j) {
  if (j->num_units == 1 || j->num_units > (int)LOW / 2 || atomic_load(&num_threads) == 1 || pthread_mutex_trylock(&busy)) {
    for (int unit = 0; unit < j->num_units; unit++) run_unit(j, unit);
    return;
  }
  current = *j;
  atomic_store(&num_done, 0);
  const uint64_t number = (atomic_load(&ticket) >> 2 * FIELD) + 1;
  atomic_store(&ticket, number << 2 * FIELD | (uint64_t)j->num_units << FIELD);
  atomic_fetch_add(&published, 1);
  if (atomic_load(&num_sleeping)) syscall(SYS_futex, &published, FUTEX_WAKE_PRIVATE, num_started, 0, 0, 0);
  take_units();
  for (int spins = 0; atomic_load(&num_done) < j->num_units;) {
    if (++spins < SPINS) relax();
    else sched_yield();
  }
  pthread_mutex_unlock(&busy);
}

static void forget_threads(void) { /* in a child of fork(), which has none of them */
  num_started = 0;
  atomic_store(&num_threads, 1);
  atomic_store(&num_sleeping, 0);
  pthread_mutex_init(&busy, 0);
}

/* -- what others call ---------------------------------------------------------------------------------------------- */

/* How many threads compute, the caller's own among them. Returns how many there are: fewer where no more could be had. */
int anllm_set_threads(int number) {
  static int is_first = 1;
  pthread_mutex_lock(&busy);
  if (is_first) pthread_atfork(0, 0, forget_threads);
  is_first = 0;
  while (num_started < number - 1) {
    pthread_t thread;
    if (pthread_create(&thread, 0, work, (void *)(long)(num_started + 1))) break;
    pthread_detach(thread);
    num_started++;
  }
  number = number < 1 ? 1 : num_started + 1 < number ? num_started + 1 : number;
  atomic_store(&num_threads, number);
  pthread_mutex_unlock(&busy);
  return number;
}

/* The functions for plain matrices; sgemv may be 0. is_single: it uses no threads of its own, so large products are shared
   out among ours. */
static int shares_out;
void anllm_set_blas(void *sgemm, void *sgemv, int has_64_bits, int is_single) {
  blas_sgemm32 = has_64_bits ? 0 : (sgemm32 *)sgemm;
  blas_sgemm64 = has_64_bits ? (sgemm64 *)sgemm : 0;
  blas_sgemv32 = has_64_bits ? 0 : (sgemv32 *)sgemv;
  blas_sgemv64 = has_64_bits ? (sgemv64 *)sgemv : 0;
  shares_out = is_single;
}

int anllm_panel(void) { return PANEL; }

#define SHARED_WORK (1l << 20) /* multiplications from which on sharing out is worth the trouble */
#define LEAST_PART 12           /* rows, or columns, of a unit */

static int parts_of(int length, int number) { /* the length of a part */
  if (number > length / LEAST_PART) number = length / LEAST_PART;
  return number < 2 ? length : (length + number - 1) / number;
}

/* a, transposed, row by row; to be freed. 0 without memory. */
static float *turned(const struct job *j) {
  float *rows = malloc(sizeof(float) * j->m * j->k);
  for (int i = 0; rows && i < j->k; i++)
    for (int row = 0; row < j->m; row++) rows[(long)row * j->k + i] = j->a[(long)i * j->lda + row];
  return rows;
}

static void multiply_packed(struct job *j) {
  const int threads = atomic_load(&num_threads), num_panels = j->n / PANEL;
  float *rows = 0;
  if (j->ta == TRANS) {
    rows = turned(j);
    if (!rows) abort(); /* as MLX does */
    j->a = rows;
    j->lda = j->k;
  }
  if (threads > 1) j->part = parts_of(j->m, (4 * threads + num_panels - 1) / num_panels);
  j->num_parts = (j->m + j->part - 1) / j->part;
  j->num_units = num_panels * j->num_parts;
  run_job(j);
  free(rows);
}

static void multiply_plain(struct job *j) {
  const int threads = atomic_load(&num_threads);
  if (threads > 1 && shares_out && (long)j->m * j->n * j->k >= SHARED_WORK) {
    j->by_columns = j->n > j->m;
    const int length = j->by_columns ? j->n : j->m;
    j->part = parts_of(length, 2 * threads);
    j->num_units = (length + j->part - 1) / j->part;
  }
  run_job(j);
}

void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda, const float *b,
                 int ldb, float beta, float *c, int ldc) {
  struct job j = {ta, tb, m, n, k, lda, ldb, ldc, alpha, beta, a, b, c, 0, 0, m, 1, 1};
  if (order != ROW_MAJOR) { /* the transposed of everything, in the other order */
    struct job other = {tb, ta, n, m, k, ldb, lda, ldc, alpha, beta, b, a, c, 0, 0, n, 1, 1};
    j = other;
  }
  if (j.m == 0 || j.n == 0) return;
  if (j.tb == NO_TRANS && j.ldb == j.n && (long)j.n * j.k >= 4) j.weight = as_weight(j.b);
  if (j.weight) multiply_packed(&j);
  else multiply_plain(&j);
}
