/* Loaded before the C library of a node: the time of day is wrong by as many seconds as the symbolic link says that is named
 * by FAULTS_CLOCK, such as "-90"; right while there is none. Clocks that only count are let be. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static time_t wrong_by(void) {
    const char *link = getenv("FAULTS_CLOCK");
    char said[32];
    int before = errno;
    ssize_t length = link == NULL ? -1 : readlink(link, said, sizeof said - 1);
    errno = before;
    if (length < 0) return 0;
    said[length] = 0;
    return atol(said);
}

int clock_gettime(clockid_t which, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (real == NULL) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int done = real(which, now);
    if (done == 0 && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) now->tv_sec += wrong_by();
    return done;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    static int (*real)(struct timeval *, void *);
    if (real == NULL) real = (int (*)(struct timeval *, void *))dlsym(RTLD_NEXT, "gettimeofday");
    int done = real(now, zone);
    if (done == 0) now->tv_sec += wrong_by();
    return done;
}

time_t time(time_t *into) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (into != NULL) *into = now.tv_sec;
    return now.tv_sec;
}
