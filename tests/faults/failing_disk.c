/* Loaded before the C library of a node: while the file named by FAULTS_DISK exists, calls on files below the path that
 * stands in it fail. Its first word says which: w writes, s syncs, r reads; the second with what error, the third after
 * how many microseconds; so "ws 5 0 /tmp/x/b". With error 0 they are only late.
 * Linux AIO, which syncs only: a queue refuses syncs that fail, so that the caller makes them by fdatasync; late ones are
 * submitted by a thread after the delay. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

/* Whether there are orders for calls of a kind on this file; then their error and delay. */
static int is_ordered(int fd, char kind, int *error, unsigned int *after_us) {
    const char *orders = getenv("FAULTS_DISK");
    char kinds[8] = "", below[512] = "", link[64], path[1024];
    if (orders == NULL || access(orders, F_OK) != 0) return 0;
    FILE *file = fopen(orders, "re");
    if (file == NULL) return 0;
    int words = fscanf(file, "%7s %d %u %511s", kinds, error, after_us, below);
    fclose(file);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (words != 4 || strchr(kinds, kind) == NULL || length < 0) return 0;
    path[length] = 0;
    return strncmp(path, below, strlen(below)) == 0;
}

static int fails(int fd, char kind) {
    int error = 0;
    unsigned int after_us = 0;
    if (!is_ordered(fd, kind, &error, &after_us)) return 0;
    if (after_us) usleep(after_us);
    errno = error;
    return error != 0;
}

#define FAILING(kind, result, name, parameters, arguments)                                   \
    result name parameters {                                                                 \
        static result(*real) parameters;                                                     \
        if (real == NULL) real = (result(*) parameters)dlsym(RTLD_NEXT, #name);              \
        int before = errno;                                                                  \
        if (fails(fd, kind)) return -1;                                                      \
        errno = before;                                                                      \
        return real arguments;                                                               \
    }

FAILING('w', ssize_t, write, (int fd, const void *data, size_t count), (fd, data, count))
FAILING('w', ssize_t, pwrite, (int fd, const void *data, size_t count, off_t at), (fd, data, count, at))
FAILING('w', ssize_t, pwrite64, (int fd, const void *data, size_t count, off64_t at), (fd, data, count, at))
FAILING('w', ssize_t, writev, (int fd, const struct iovec *parts, int count), (fd, parts, count))
FAILING('w', ssize_t, pwritev, (int fd, const struct iovec *parts, int count, off_t at), (fd, parts, count, at))
FAILING('w', ssize_t, pwritev64, (int fd, const struct iovec *parts, int count, off64_t at), (fd, parts, count, at))
FAILING('w', ssize_t, pwritev2, (int fd, const struct iovec *parts, int count, off_t at, int how), (fd, parts, count, at, how))
FAILING('w', ssize_t, pwritev64v2, (int fd, const struct iovec *parts, int count, off64_t at, int how), (fd, parts, count, at, how))
FAILING('w', int, fallocate, (int fd, int how, off_t at, off_t count), (fd, how, at, count))
FAILING('w', int, fallocate64, (int fd, int how, off64_t at, off64_t count), (fd, how, at, count))
FAILING('s', int, fsync, (int fd), (fd))
FAILING('s', int, fdatasync, (int fd), (fd))
FAILING('s', int, syncfs, (int fd), (fd))
FAILING('r', ssize_t, read, (int fd, void *data, size_t count), (fd, data, count))
FAILING('r', ssize_t, pread, (int fd, void *data, size_t count, off_t at), (fd, data, count, at))
FAILING('r', ssize_t, pread64, (int fd, void *data, size_t count, off64_t at), (fd, data, count, at))
FAILING('r', ssize_t, preadv, (int fd, const struct iovec *parts, int count, off_t at), (fd, parts, count, at))
FAILING('r', ssize_t, preadv64, (int fd, const struct iovec *parts, int count, off64_t at), (fd, parts, count, at))
FAILING('r', ssize_t, preadv2, (int fd, const struct iovec *parts, int count, off_t at, int how), (fd, parts, count, at, how))
FAILING('r', ssize_t, preadv64v2, (int fd, const struct iovec *parts, int count, off64_t at, int how), (fd, parts, count, at, how))
FAILING('r', ssize_t, sendfile, (int to, int fd, off_t *at, size_t count), (to, fd, at, count))
FAILING('r', ssize_t, sendfile64, (int to, int fd, off64_t *at, size_t count), (to, fd, at, count))

static long (*real_syscall)(long, ...);

struct late_syncs {
    aio_context_t context;
    long count;
    struct iocb **requests;
    unsigned int after_us;
};

static void *submit_late(void *given) {
    struct late_syncs syncs = *(struct late_syncs *)given;
    free(given);
    usleep(syncs.after_us);
    while (syncs.count > 0) {
        long taken = real_syscall(SYS_io_submit, syncs.context, syncs.count, syncs.requests);
        if (taken <= 0) abort(); /* the caller would wait for ever */
        syncs.count -= taken;
        syncs.requests += taken;
    }
    return NULL;
}

/* The result of io_submit for syncs with orders; 0 if there are none. */
static long submit_as_ordered(aio_context_t context, long count, struct iocb **requests) {
    int error = 0;
    unsigned int after_us = 0;
    pthread_t thread;
    for (long at = 0; at < count; at++) {
        if (!is_ordered(requests[at]->aio_fildes, 's', &error, &after_us)) continue;
        struct late_syncs *syncs = error ? NULL : malloc(sizeof *syncs);
        if (syncs == NULL) break;
        *syncs = (struct late_syncs){context, count, requests, after_us};
        if (pthread_create(&thread, NULL, submit_late, syncs) == 0) return pthread_detach(thread), count;
        free(syncs);
        error = EAGAIN;
        break;
    }
    errno = error;
    return error ? -1 : 0;
}

long syscall(long number, ...) {
    long given[6], result;
    va_list list;
    va_start(list, number);
    for (int at = 0; at < 6; at++) given[at] = va_arg(list, long);
    va_end(list);
    if (real_syscall == NULL) real_syscall = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    if (number == SYS_io_submit) {
        int before = errno;
        if ((result = submit_as_ordered(given[0], given[1], (struct iocb **)given[2])) != 0) return result;
        errno = before;
    }
    return real_syscall(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}
