/* What MLX finds on a Linux CPU when it looks for cblas_sgemm.

   Plain matrices go on to the BLAS that was given to anllm_set_blas. Where b is no matrix but a packed weight (weights.h),
   attention (attention.h) or a layer without products (layers.h), which its first words tell, that is computed here. */

#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>

#include "attention.h"
#include "layers.h"
#include "pool.h"
#include "task.h"
#include "vectors.h"
#include "weights.h"

/* -- plain matrices ------------------------------------------------------------------------------------------------ */

typedef void sgemm32(int, int, int, int, int, int, float, const float *, int, const float *, int, float, float *, int);
typedef void sgemm64(int, int, int, int64_t, int64_t, int64_t, float, const float *, int64_t, const float *, int64_t,
                     float, float *, int64_t);
typedef void sgemv32(int, int, int, int, float, const float *, int, const float *, int, float, float *, int);
typedef void sgemv64(int, int, int64_t, int64_t, float, const float *, int64_t, const float *, int64_t, float, float *,
                     int64_t);

static sgemm32 *blas_sgemm32;
static sgemm64 *blas_sgemm64;
static sgemv32 *blas_sgemv32;
static sgemv64 *blas_sgemv64;
static int blas_is_single;

static void call_blas(const struct task *t) {
  if (t->m == 1 && (blas_sgemv32 || blas_sgemv64)) { /* a matrix-vector product packs nothing: twice as quick */
    const int plain = t->tb == NO_TRANS, rows = plain ? t->k : t->n, columns = plain ? t->n : t->k;
    const int trans = plain ? TRANS : NO_TRANS, step = t->ta == NO_TRANS ? 1 : t->lda;
    if (blas_sgemv64) blas_sgemv64(ROW_MAJOR, trans, rows, columns, t->alpha, t->b, t->ldb, t->a, step, t->beta, t->c, 1);
    else blas_sgemv32(ROW_MAJOR, trans, rows, columns, t->alpha, t->b, t->ldb, t->a, step, t->beta, t->c, 1);
  } else if (blas_sgemm64) {
    blas_sgemm64(ROW_MAJOR, t->ta, t->tb, t->m, t->n, t->k, t->alpha, t->a, t->lda, t->b, t->ldb, t->beta, t->c, t->ldc);
  } else {
    blas_sgemm32(ROW_MAJOR, t->ta, t->tb, t->m, t->n, t->k, t->alpha, t->a, t->lda, t->b, t->ldb, t->beta, t->c, t->ldc);
  }
}

static void run_plain_unit(const struct task *whole, int unit) {
  struct task t = *whole;
  const long first = (long)unit * t.part;
  if (t.by_columns) {
    t.n = t.n - first < t.part ? t.n - first : t.part;
    t.b += t.tb == NO_TRANS ? first : first * t.ldb;
    t.c += first;
  } else {
    t.m = t.m - first < t.part ? t.m - first : t.part;
    t.a += t.ta == NO_TRANS ? first * t.lda : first;
    t.c += first * t.ldc;
  }
  call_blas(&t);
}

static void run_unit(const struct task *t, int unit) {
  if (t->weight) run_weight_unit(t, unit);
  else if (t->attention) run_attention_unit(t, unit);
  else if (t->layer) run_layer_unit(t, unit);
  else run_plain_unit(t, unit);
}

/* -- units --------------------------------------------------------------------------------------------------------- */

#define SHARED_WORK (1l << 20) /* multiplications from which on sharing out is worth the trouble */
#define LEAST_PART 12          /* rows, or columns, of a unit */
#define LAYER_PART 8192        /* numbers of a unit of a layer without products, at least */

static int parts_of(int length, int number) { /* the length of a part */
  if (number > length / LEAST_PART) number = length / LEAST_PART;
  return number < 2 ? length : (length + number - 1) / number;
}

static void cut(struct task *t) {
  const int threads = atomic_load(&num_threads);
  t->part = t->m;
  t->num_parts = t->num_units = 1;
  if (t->weight) {
    const int num_panels = t->n / PANEL;
    if (threads > 1) t->part = parts_of(t->m, (4 * threads + num_panels - 1) / num_panels);
    t->num_parts = (t->m + t->part - 1) / t->part;
    t->num_units = num_panels * t->num_parts;
  } else if (t->attention) {
    t->num_units = t->attention->num_groups * t->attention->kv_heads;
  } else if (t->layer) {
    const int least = LAYER_PART / t->layer->width + 1, even = (t->m + 2 * threads - 1) / (2 * threads);
    t->part = threads == 1 ? t->m : even > least ? even : least;
    t->num_units = (t->m + t->part - 1) / t->part;
  } else if (threads > 1 && blas_is_single && (long)t->m * t->n * t->k >= SHARED_WORK) {
    t->by_columns = t->n > t->m;
    const int length = t->by_columns ? t->n : t->m;
    t->part = parts_of(length, 2 * threads);
    t->num_units = (length + t->part - 1) / t->part;
  }
}

/* a, transposed, row by row; to be freed. Ends the process without memory, as MLX does. */
static float *turned(const struct task *t) {
  float *rows = malloc(sizeof(float) * t->m * t->k);
  if (!rows) abort();
  for (int i = 0; i < t->k; i++)
    for (int row = 0; row < t->m; row++) rows[(long)row * t->k + i] = t->a[(long)i * t->lda + row];
  return rows;
}

static void find_out(struct task *t) { /* what b is */
  const uint32_t *words = (const uint32_t *)t->b;
  if (t->tb != NO_TRANS || t->ldb != t->n || (long)t->n * t->k < 5) return;
  for (int i = 0; i < 4; i++)
    if (words[i] != MAGIC[i]) return;
  if (words[4] == NOTHING) t->is_nothing = 1;
  else if (words[4] == ATTENTION) t->attention = (const struct attention *)t->b;
  else if (words[4] == RMS_NORM || words[4] == SWIGLU) t->layer = (const struct layer *)t->b;
  else t->weight = (const struct weight *)t->b;
}

/* -- what others call ---------------------------------------------------------------------------------------------- */

/* The functions for plain matrices; sgemv may be 0. is_single: it uses no threads of its own, so large products are shared
   out among ours. */
void anllm_set_blas(void *sgemm, void *sgemv, int has_64_bits, int is_single) {
  blas_sgemm32 = has_64_bits ? 0 : (sgemm32 *)sgemm;
  blas_sgemm64 = has_64_bits ? (sgemm64 *)sgemm : 0;
  blas_sgemv32 = has_64_bits ? 0 : (sgemv32 *)sgemv;
  blas_sgemv64 = has_64_bits ? (sgemv64 *)sgemv : 0;
  blas_is_single = is_single;
}

/* How many threads compute, the caller's own among them. Returns how many there are: fewer where no more could be had. */
int anllm_set_threads(int number) { return set_threads(number); }

const uint32_t *anllm_magic(void) { return MAGIC; }
int anllm_panel(void) { return PANEL; }
int anllm_lanes(void) { return LANES; }
int anllm_max_queries(void) { return MAX_QUERIES; }
int anllm_max_dim(void) { return MAX_DIM; }

void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda, const float *b,
                 int ldb, float beta, float *c, int ldc) {
  struct task t = {.ta = ta, .tb = tb, .m = m, .n = n, .k = k, .lda = lda, .ldb = ldb, .ldc = ldc, .a = a, .b = b, .c = c};
  if (order != ROW_MAJOR) { /* the transposed of everything, in the other order */
    struct task other = {.ta = tb, .tb = ta, .m = n, .n = m, .k = k, .lda = ldb, .ldb = lda, .ldc = ldc, .a = b, .b = a, .c = c};
    t = other;
  }
  t.alpha = alpha;
  t.beta = beta;
  if (m == 0 || n == 0) return;
  find_out(&t);
  if (t.is_nothing) return; /* c stays as it was allocated: memory that nobody has touched yet */
  float *rows = 0;
  if (t.ta == TRANS && (t.weight || t.attention || t.layer)) {
    t.a = rows = turned(&t);
    t.ta = NO_TRANS;
    t.lda = t.k;
  }
  if (t.attention && t.attention->has_kv) write_kv(&t);
  cut(&t);
  run_task(&t);
  free(rows);
}
