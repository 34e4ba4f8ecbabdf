/* The threads that compute. Each task is cut into units that whoever is free takes, so that a thread which the system has
   stopped holds up one unit and not half of the task. */

#pragma once

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "task.h"
#include "vectors.h"

static void run_unit(const struct task *t, int unit); /* library.c */

#define SPINS 20000 /* looks at what is waited for, 0.3 ms or so: longer than what MLX does between two tasks */
#define FIELD 20
#define LOW ((1u << FIELD) - 1)

static atomic_uint_fast64_t ticket; /* number of the task, its units, the next unit: 24, 20 and 20 bits */
static atomic_uint published;       /* tasks so far */
static atomic_int num_done, num_sleeping, num_threads = 1;
static int num_started;
static struct task current;
static pthread_mutex_t busy = PTHREAD_MUTEX_INITIALIZER;

INLINE void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/* A unit that was taken belongs to the task in `current`, which stays until all its units are done. */
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

static void run_task(const struct task *t) {
  if (t->num_units == 1 || t->num_units > (int)LOW / 2 || atomic_load(&num_threads) == 1 || pthread_mutex_trylock(&busy)) {
    for (int unit = 0; unit < t->num_units; unit++) run_unit(t, unit);
    return;
  }
  current = *t;
  atomic_store(&num_done, 0);
  const uint64_t number = (atomic_load(&ticket) >> 2 * FIELD) + 1;
  atomic_store(&ticket, number << 2 * FIELD | (uint64_t)t->num_units << FIELD);
  atomic_fetch_add(&published, 1);
  if (atomic_load(&num_sleeping)) syscall(SYS_futex, &published, FUTEX_WAKE_PRIVATE, num_started, 0, 0, 0);
  take_units();
  for (int spins = 0; atomic_load(&num_done) < t->num_units;) {
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

/* How many threads compute, the caller's own among them. Returns how many there are: fewer where no more could be had. */
static int set_threads(int number) {
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

