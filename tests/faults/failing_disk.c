/* Loaded before the C library of a node: while the file named by FAULTS_DISK exists, calls on files below the path that
 * stands in it fail. Its first word says which: w writes, s syncs, r reads; the second with what error, the third after
 * how many microseconds; so "ws 5 0 /tmp/x/b". With error 0 they are only late. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static int fails(int fd, char kind) {
    const char *orders = getenv("FAULTS_DISK");
    char kinds[8] = "", below[512] = "", link[64], path[1024];
    int error = 0;
    unsigned int after_us = 0;
    if (orders == NULL || access(orders, F_OK) != 0) return 0;
    FILE *file = fopen(orders, "re");
    if (file == NULL) return 0;
    int words = fscanf(file, "%7s %d %u %511s", kinds, &error, &after_us, below);
    fclose(file);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (words != 4 || strchr(kinds, kind) == NULL || length < 0) return 0;
    path[length] = 0;
    if (strncmp(path, below, strlen(below)) != 0) return 0;
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
