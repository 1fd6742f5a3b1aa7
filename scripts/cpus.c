/* Lets a program see another number of CPUs than the machine has, for tests: preload it with
 * LD_PRELOAD and set TEST_CPUS. Each thread appears to run on the CPU after that of the thread
 * started before it, and to move to the next one now and then. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Calls of sched_getcpu between two moves of a thread. */
#define CALLS_PER_MOVE 5000

static int cpus(void) {
  const char *text = getenv("TEST_CPUS");
  int count = text ? atoi(text) : 1;
  return count > 0 ? count : 1;
}

int sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t *set) {
  (void)pid;
  memset(set, 0, bytes);
  for (int cpu = 0; cpu < cpus() && cpu < (int)(bytes * 8); cpu++) CPU_SET_S(cpu, bytes, set);
  return 0;
}

long sysconf(int name) {
  static long (*real)(int);
  if (name == _SC_NPROCESSORS_ONLN || name == _SC_NPROCESSORS_CONF) return cpus();
  if (!real) real = (long (*)(int))dlsym(RTLD_NEXT, "sysconf");
  return real(name);
}

int sched_getcpu(void) {
  static atomic_uint threads;
  static _Thread_local unsigned number, calls;
  if (calls == 0) number = atomic_fetch_add(&threads, 1);
  return (int)((number + calls++ / CALLS_PER_MOVE) % (unsigned)cpus());
}
