/* The system calls of commits, from C: what they cost without an interpreter.
 *
 * For each line "WRITERS COMMITS" on stdin it makes that many commits in each of that many
 * files, and prints the nanoseconds. A commit is what the server makes of it: a thread is
 * woken, which asks for the file's status by name, writes the line and syncs it; then the
 * main thread is woken by an eventfd. Each writer begins its next commit when the last one
 * is done.
 *
 *     commits DIRECTORY FILES BYTES
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct writer {
    char path[4096];
    int file;
    off_t end;
    sem_t wake;
    int is_done;
};

static struct writer *writers;
static char *line;
static size_t bytes;
static int finished;

static void check(int holds, const char *what) {
    if (!holds) {
        perror(what);
        exit(1);
    }
}

static void *commit_often(void *given) {
    struct writer *writer = given;
    struct stat status;
    uint64_t one = 1;
    for (;;) {
        while (sem_wait(&writer->wake)) {}
        check(lstat(writer->path, &status) == 0, "lstat");
        check(pwrite(writer->file, line, bytes, writer->end) == (ssize_t)bytes, "pwrite");
        check(fdatasync(writer->file) == 0, "fdatasync");
        writer->end += bytes;
        __atomic_store_n(&writer->is_done, 1, __ATOMIC_RELEASE);
        check(write(finished, &one, sizeof one) == sizeof one, "eventfd");
    }
    return NULL;
}

static long long commit_all(int waiting, int count, int each) {
    struct timespec begin, end;
    struct epoll_event event;
    uint64_t many;
    int *left = calloc(count, sizeof *left), busy = count;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int n = 0; n < count; n++) {
        left[n] = each;
        sem_post(&writers[n].wake);
    }
    while (busy) {
        if (epoll_wait(waiting, &event, 1, -1) != 1) continue;
        check(read(finished, &many, sizeof many) == sizeof many, "read");
        for (int n = 0; n < count; n++) {
            if (!__atomic_exchange_n(&writers[n].is_done, 0, __ATOMIC_ACQUIRE)) continue;
            if (--left[n]) sem_post(&writers[n].wake);
            else busy--;
        }
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    free(left);
    return (end.tv_sec - begin.tv_sec) * 1000000000LL + (end.tv_nsec - begin.tv_nsec);
}

int main(int argc, char **argv) {
    check(argc == 4, "commits DIRECTORY FILES BYTES");
    int files = atoi(argv[2]), count, each;
    bytes = strtoul(argv[3], NULL, 10);
    line = memset(malloc(bytes), 'x', bytes);
    writers = calloc(files, sizeof *writers);
    check((finished = eventfd(0, EFD_CLOEXEC)) >= 0, "eventfd");
    for (int n = 0; n < files; n++) {
        pthread_t thread;
        snprintf(writers[n].path, sizeof writers[n].path, "%s/%d", argv[1], n);
        writers[n].file = open(writers[n].path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        check(writers[n].file >= 0, writers[n].path);
        check(sem_init(&writers[n].wake, 0, 0) == 0, "sem_init");
        check(pthread_create(&thread, NULL, commit_often, &writers[n]) == 0, "thread");
    }
    struct epoll_event readable = {.events = EPOLLIN};
    int waiting = epoll_create1(EPOLL_CLOEXEC);
    check(waiting >= 0 && epoll_ctl(waiting, EPOLL_CTL_ADD, finished, &readable) == 0, "epoll");
    while (scanf("%d %d", &count, &each) == 2 && count <= files) {
        printf("%lld\n", commit_all(waiting, count, each));
        fflush(stdout);
    }
    return 0;
}
