/* A load generator that uses almost no processor time: it sends prepared requests and counts the responses.
 *
 * usage: client PORT FILE CONNECTIONS IN_FLIGHT SECONDS MAX_RESPONSES ERROR_AT [COUNTER_AT STEP [CRC_AT MASK...]]
 *
 * FILE contains request frames with their sizes; each connection sends an equal share of them, in turn, with IN_FLIGHT
 * requests outstanding; those that it may send at the same time it sends with one system call, each frame once.
 * Positions are counted from the first byte after a frame's size field:
 *   ERROR_AT    the error code of a response, which must be 0; -1: no check.
 *   COUNTER_AT  an int32 of a request, which grows by STEP each time that its frame is sent: a base sequence, or the
 *               epoch of a fetch session.
 *   CRC_AT      the CRC-32C that covers the counter. It is linear: a bit of the counter that changes flips the bits of
 *               a mask. There are 32 masks (hexadecimal), for the counter's bits from the lowest to the highest.
 *
 * Once each connection has had one response, it prints "ready" and waits for a line of input. After SECONDS or
 * MAX_RESPONSES (0: no limit) it waits for the responses that are outstanding, and prints:
 *   responses seconds bytes_sent bytes_received p50_us p99_us own_processor_us
 * Its connections stay open until the input ends. */

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { SIZE = 4, CORRELATION_AT = 4, MAX_IN_FLIGHT = 64, HEAD = 1024, DRAIN_SECONDS = 30, MAX_SAMPLES = 1 << 22 };

typedef struct {
    uint8_t *bytes; /* with the size */
    uint32_t size;
} Frame;

typedef struct {
    int fd;
    Frame *frames;
    int next, waits_for_space;
    size_t written;                  /* bytes of the next frame that were sent before the socket was full */
    uint32_t started, received;      /* requests, perhaps the last one in part, and responses: the correlation ids */
    double sent_at[MAX_IN_FLIGHT];
    uint8_t head[HEAD];              /* the first bytes of the response that is being received */
    size_t got, size;                /* bytes of it so far, and in all, with the size */
} Connection;

static int frames_each, in_flight, error_at, counter_at = -1, step, crc_at = -1;
static uint32_t masks[32];
static long long responses, max_responses, outstanding;
static double bytes_sent, bytes_received;
static float *samples;
static int stopping;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static uint32_t get32(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static void put32(uint8_t *at, uint32_t value) {
    at[0] = value >> 24, at[1] = value >> 16, at[2] = value >> 8, at[3] = value;
}

static void advance_counter(uint8_t *body) {
    uint32_t before = get32(body + counter_at);
    uint32_t after = (before + step) & 0x7fffffff; /* as sequences and epochs do after the largest */
    put32(body + counter_at, after);
    if (crc_at < 0) return;
    uint32_t crc = get32(body + crc_at), changed = before ^ after;
    for (int bit = 0; changed; bit++, changed >>= 1)
        if (changed & 1) crc ^= masks[bit];
    put32(body + crc_at, crc);
}

/* Sends requests until enough are outstanding or the socket is full, as many as possible with each system call. */
static void send_requests(Connection *c) {
    for (;;) {
        struct iovec parts[MAX_IN_FLIGHT];
        uint32_t unsent = c->started - (c->written > 0); /* the first request that is not sent completely */
        uint32_t end = c->received + in_flight;
        if (stopping || (int32_t)(end - c->started) < 0) end = c->started;
        int count = 0;
        for (; unsent + count != end && count < frames_each; count++) {
            Frame *frame = &c->frames[(c->next + count) % frames_each];
            put32(frame->bytes + SIZE + CORRELATION_AT, (unsent + count) & 0x7fffffff);
            parts[count] = (struct iovec){frame->bytes, frame->size};
        }
        c->waits_for_space = count > 0;
        if (!count) return;
        parts[0].iov_base = (uint8_t *)parts[0].iov_base + c->written;
        parts[0].iov_len -= c->written;
        double at = now();
        ssize_t n = writev(c->fd, parts, count);
        if (n < 0 && errno == EAGAIN) return;
        if (n < 0) fail("send");
        bytes_sent += n;
        for (n += c->written; n > 0; unsent++) {
            Frame *frame = &c->frames[c->next];
            if (unsent == c->started) {
                c->sent_at[c->started++ % MAX_IN_FLIGHT] = at;
                outstanding++;
            }
            c->written = n < frame->size ? n : 0;
            n -= frame->size;
            if (c->written) break;
            if (counter_at >= 0) advance_counter(frame->bytes + SIZE);
            c->next = (c->next + 1) % frames_each;
        }
    }
}

static void complete_response(Connection *c) {
    if (get32(c->head + SIZE) != (c->received & 0x7fffffff)) {
        fprintf(stderr, "correlation id %u, expected %u\n", get32(c->head + SIZE), c->received);
        exit(1);
    }
    if (error_at >= 0) {
        const uint8_t *code = c->head + SIZE + error_at;
        if (c->size < (size_t)SIZE + error_at + 2 || code[0] || code[1]) {
            fprintf(stderr, "error code %d in a response of %zu bytes after %lld responses\n",
                    (int16_t)(code[0] << 8 | code[1]), c->size, responses);
            exit(1);
        }
    }
    samples[responses % MAX_SAMPLES] = now() - c->sent_at[c->received % MAX_IN_FLIGHT];
    responses++;
    outstanding--;
    c->received++;
    c->got = 0;
    if (max_responses && responses + outstanding >= max_responses) stopping = 1;
}

static void receive_responses(Connection *c) {
    static uint8_t buffer[1 << 18];
    ssize_t n;
    do {
        n = read(c->fd, buffer, sizeof buffer);
        if (n < 0 && errno == EAGAIN) return;
        if (n < 0) fail("receive");
        if (n == 0) {
            fprintf(stderr, "the server closed the connection after %lld responses\n", responses);
            exit(1);
        }
        bytes_received += n;
        for (ssize_t at = 0; at < n;) {
            size_t goal = c->got < SIZE ? SIZE : c->size;
            size_t part = goal - c->got < (size_t)(n - at) ? goal - c->got : (size_t)(n - at);
            if (c->got < HEAD) memcpy(c->head + c->got, buffer + at, part < HEAD - c->got ? part : HEAD - c->got);
            at += part;
            c->got += part;
            if (c->got == SIZE && goal == SIZE) c->size = SIZE + get32(c->head);
            else if (c->got == c->size && goal != SIZE) complete_response(c);
        }
    } while (n == sizeof buffer);
}

static void watch(int poller, int operation, Connection *c) {
    struct epoll_event event = {.events = EPOLLIN | (c->waits_for_space ? EPOLLOUT : 0), .data.ptr = c};
    if (epoll_ctl(poller, operation, c->fd, &event)) fail("epoll_ctl");
}

static void serve(int poller) {
    struct epoll_event events[256];
    int count = epoll_wait(poller, events, 256, 100);
    for (int i = 0; i < count; i++) {
        Connection *c = events[i].data.ptr;
        int waited = c->waits_for_space;
        if (events[i].events & ~EPOLLOUT) receive_responses(c);
        send_requests(c);
        if (c->waits_for_space != waited) watch(poller, EPOLL_CTL_MOD, c);
    }
}

/* Each connection sends one request and receives its response: it is accepted and in use from then on. */
static void warm_up(Connection *c) {
    int wanted = in_flight;
    uint32_t before = c->received;
    in_flight = 1;
    send_requests(c);
    in_flight = 0;
    for (double end = now() + DRAIN_SECONDS; c->received == before && now() < end; usleep(50)) {
        send_requests(c);
        receive_responses(c);
    }
    if (c->received == before) {
        fprintf(stderr, "no response in %d s\n", DRAIN_SECONDS);
        exit(1);
    }
    in_flight = wanted;
}

static void open_connection(Connection *c, int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int one = 1;
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&address, sizeof address)) fail("connect");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
}

static Frame *read_frames(const char *path, int *count) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) fail(path);
    long size = ftell(file);
    uint8_t *bytes = malloc(size);
    rewind(file);
    if (!bytes || fread(bytes, 1, size, file) != (size_t)size) fail(path);
    Frame *frames = malloc((size / 12 + 1) * sizeof *frames);
    *count = 0;
    for (long at = 0; at < size; at += frames[(*count)++].size)
        frames[*count] = (Frame){bytes + at, SIZE + get32(bytes + at)};
    return frames;
}

static double processor_seconds(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static int by_size(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    if (argc != 8 && argc != 10 && argc != 43) return 2;
    int port = atoi(argv[1]), count, connections = atoi(argv[3]);
    double seconds = atof(argv[5]);
    long long limit = atoll(argv[6]);
    in_flight = atoi(argv[4]);
    error_at = atoi(argv[7]);
    if (argc > 8) counter_at = atoi(argv[8]), step = atoi(argv[9]);
    if (argc > 10) crc_at = atoi(argv[10]);
    for (int bit = 0; argc > 11 && bit < 32; bit++) masks[bit] = strtoul(argv[11 + bit], NULL, 16);
    Frame *frames = read_frames(argv[2], &count);
    frames_each = count / connections;
    if (!frames_each || in_flight > MAX_IN_FLIGHT || error_at + SIZE + 2 > HEAD) return 2;
    samples = malloc(MAX_SAMPLES * sizeof *samples);

    int poller = epoll_create1(0);
    Connection *all = calloc(connections, sizeof *all);
    for (int i = 0; i < connections; i++) {
        all[i].frames = frames + (size_t)i * frames_each;
        open_connection(&all[i], port);
        warm_up(&all[i]);
        watch(poller, EPOLL_CTL_ADD, &all[i]);
    }
    puts("ready");
    fflush(stdout);
    if (getchar() == EOF) return 1;

    responses = 0, bytes_sent = bytes_received = 0, max_responses = limit, stopping = 0;
    double used = processor_seconds(), start = now();
    for (int i = 0; i < connections; i++) {
        send_requests(&all[i]);
        if (all[i].waits_for_space) watch(poller, EPOLL_CTL_MOD, &all[i]);
    }
    while (!stopping) {
        serve(poller);
        if (now() - start >= seconds) stopping = 1;
    }
    for (double end = now() + DRAIN_SECONDS; outstanding;) {
        serve(poller);
        if (now() > end) {
            fprintf(stderr, "%lld responses are missing after %d s\n", outstanding, DRAIN_SECONDS);
            return 1;
        }
    }
    double took = now() - start;
    used = processor_seconds() - used;
    size_t n = responses < MAX_SAMPLES ? responses : MAX_SAMPLES;
    if (!n) {
        fprintf(stderr, "no responses in %.1f s\n", took);
        return 1;
    }
    qsort(samples, n, sizeof *samples, by_size);
    printf("%lld %.6f %.0f %.0f %.1f %.1f %.0f\n", responses, took, bytes_sent, bytes_received, samples[n / 2] * 1e6,
           samples[(size_t)(n * .99)] * 1e6, used * 1e6);
    fflush(stdout);
    while (getchar() != EOF) {}
    return 0;
}
