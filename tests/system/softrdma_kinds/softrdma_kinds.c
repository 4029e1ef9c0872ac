// SPDX-License-Identifier: BSD-3-Clause
/* softrdma_kinds: every kind of librpma use, by librpma alone.
 *
 *   softrdma_kinds both ADDRESS KIND          server and client, threads of one process
 *   softrdma_kinds server ADDRESS PORT KIND   prints "listening PORT" once it does
 *   softrdma_kinds client ADDRESS PORT KIND
 *   softrdma_kinds kinds                      their names
 *
 * Knows nothing of softrdma: it runs on a kernel's device just as well. Exits 0 when all was as it
 * should be. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <librpma.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REGION 65536
#define MESSAGES 200
#define MANY 64
#define TIMEOUT_S 120

#define REQUIRE(condition)                                                                    \
  do {                                                                                        \
    if (!(condition)) {                                                                       \
      fprintf(stderr, "%s:%d: %s: not true: %s\n", __FILE__, __LINE__, __func__, #condition); \
      exit(1);                                                                                \
    }                                                                                         \
  } while (0)
#define CALL(call)                                                                             \
  do {                                                                                         \
    const int result_ = (call);                                                                \
    if (result_ != 0) {                                                                        \
      fprintf(stderr, "%s:%d: %s -> %s\n", __FILE__, __LINE__, #call, rpma_err_2str(result_)); \
      exit(1);                                                                                 \
    }                                                                                          \
  } while (0)

enum kind {
  CONNECTION,
  READ,
  WRITE,
  ATOMIC_WRITE,
  FLUSH,
  MESSAGES_KIND,
  WRITE_WITH_IMM,
  SEND_WITH_IMM,
  RECEIVE_CQ,
  SRQ,
  SHARED_CHANNEL,
  MANY_CONNECTIONS,
  KINDS
};
static const char* const kind_names[KINDS] = {
    "connection", "read",     "write",          "atomic-write",
    "flush",      "messages", "write-with-imm", "send-with-imm",
    "receive-cq", "srq",      "shared-channel", "many-connections"};

struct side {
  const char* address;
  char port[16];
  enum kind kind;
  pthread_barrier_t* listening; /* one process only */
};

/* librpma's peers, endpoints and regions are not thread-safe. */
static pthread_mutex_t setup = PTHREAD_MUTEX_INITIALIZER;

static void next_event(struct rpma_conn* conn, enum rpma_conn_event wanted) {
  enum rpma_conn_event event = RPMA_CONN_UNDEFINED;
  CALL(rpma_conn_next_event(conn, &event));
  if (event != wanted) {
    fprintf(stderr, "event %s instead of %s\n", rpma_utils_conn_event_2str(event),
            rpma_utils_conn_event_2str(wanted));
    exit(1);
  }
}

static struct ibv_wc next_wc(struct rpma_cq* cq) {
  struct ibv_wc wc;
  for (;;) {
    const int result = rpma_cq_get_wc(cq, 1, &wc, NULL);
    if (result == RPMA_E_NO_COMPLETION) {
      const int waited = rpma_cq_wait(cq);
      REQUIRE(waited == 0 || waited == RPMA_E_NO_COMPLETION);
      continue;
    }
    CALL(result);
    if (wc.status != IBV_WC_SUCCESS) {
      fprintf(stderr, "completion: %s\n", ibv_wc_status_str(wc.status));
      exit(1);
    }
    return wc;
  }
}

static struct rpma_conn_cfg* make_cfg(enum kind kind, struct rpma_srq* srq) {
  struct rpma_conn_cfg* cfg = NULL;
  CALL(rpma_conn_cfg_new(&cfg));
  CALL(rpma_conn_cfg_set_timeout(cfg, 5000));
  CALL(rpma_conn_cfg_set_cq_size(cfg, 32));
  CALL(rpma_conn_cfg_set_sq_size(cfg, 16));
  CALL(rpma_conn_cfg_set_rq_size(cfg, 16));
  if (kind == RECEIVE_CQ || kind == SHARED_CHANNEL) CALL(rpma_conn_cfg_set_rcq_size(cfg, 32));
  if (kind == SHARED_CHANNEL) CALL(rpma_conn_cfg_set_compl_channel(cfg, true));
  if (srq != NULL) CALL(rpma_conn_cfg_set_srq(cfg, srq));
  return cfg;
}

static struct rpma_peer* make_peer(const char* address, enum rpma_util_ibv_context_type type) {
  struct ibv_context* verbs = NULL;
  struct rpma_peer* peer = NULL;
  CALL(rpma_utils_get_ibv_context(address, type, &verbs));
  CALL(rpma_peer_new(verbs, &peer));
  return peer;
}

static bool receives(enum kind kind) {
  return kind == MESSAGES_KIND || kind == WRITE_WITH_IMM || kind == SEND_WITH_IMM ||
         kind == RECEIVE_CQ || kind == SRQ || kind == SHARED_CHANNEL;
}

static struct rpma_cq* receive_cq(struct rpma_conn* conn) {
  struct rpma_cq* cq = NULL;
  CALL(rpma_conn_get_rcq(conn, &cq));
  if (cq == NULL) CALL(rpma_conn_get_cq(conn, &cq));
  return cq;
}

/* Waits on a shared channel for one receive completion and returns how many other ones passed by.
 */
static struct ibv_wc next_wc_shared(struct rpma_conn* conn) {
  for (;;) {
    struct rpma_cq* cq = NULL;
    struct ibv_wc wc;
    bool is_rcq = false;
    if (rpma_cq_get_wc(receive_cq(conn), 1, &wc, NULL) == 0) return wc;
    const int result = rpma_conn_wait(conn, 0, &cq, &is_rcq);
    if (result == RPMA_E_NO_COMPLETION) continue;
    CALL(result);
    if (is_rcq) continue;
    while (rpma_cq_get_wc(cq, 1, &wc, NULL) == 0) REQUIRE(wc.status == IBV_WC_SUCCESS);
  }
}

static void serve(struct side* side) {
  struct rpma_ep* ep = NULL;
  struct rpma_srq* srq = NULL;
  struct rpma_cq* srq_cq = NULL;
  struct rpma_mr_local* mr = NULL;
  struct rpma_conn* conns[MANY] = {NULL};
  const int count = side->kind == MANY_CONNECTIONS ? MANY : side->kind == SRQ ? 4 : 1;
  const enum kind kind = side->kind;
  uint8_t* region = aligned_alloc(4096, REGION);
  REQUIRE(region != NULL);
  memset(region, 0, REGION);
  memcpy(region + 4096, "to be read", 11);

  pthread_mutex_lock(&setup);
  struct rpma_peer* peer = make_peer(side->address, RPMA_UTIL_IBV_CONTEXT_LOCAL);
  CALL(rpma_mr_reg(peer, region, REGION,
                   RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_WRITE_DST |
                       RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY | RPMA_MR_USAGE_SEND |
                       RPMA_MR_USAGE_RECV,
                   &mr));
  if (kind == SRQ) {
    struct rpma_srq_cfg* srq_cfg = NULL;
    CALL(rpma_srq_cfg_new(&srq_cfg));
    CALL(rpma_srq_cfg_set_rq_size(srq_cfg, 64));
    CALL(rpma_srq_cfg_set_rcq_size(srq_cfg, 64));
    CALL(rpma_srq_new(peer, srq_cfg, &srq));
    CALL(rpma_srq_cfg_delete(&srq_cfg));
    CALL(rpma_srq_get_rcq(srq, &srq_cq));
    REQUIRE(srq_cq != NULL);
    for (uintptr_t i = 0; i < 64; i++) CALL(rpma_srq_recv(srq, mr, i * 64, 64, (void*)i));
  }
  /* librpma tells nobody which port it got, so a free one is looked for. */
  for (int port = 20000 + getpid() % 20000, tries = 0;; port++, tries++) {
    if (strcmp(side->port, "0") != 0) {
      CALL(rpma_ep_listen(peer, side->address, side->port, &ep));
      break;
    }
    char text[16];
    snprintf(text, sizeof text, "%d", port);
    if (rpma_ep_listen(peer, side->address, text, &ep) == 0) {
      strcpy(side->port, text);
      break;
    }
    REQUIRE(tries < 1000);
  }
  pthread_mutex_unlock(&setup);
  if (side->listening != NULL) {
    pthread_barrier_wait(side->listening);
  } else {
    printf("listening %s\n", side->port);
    fflush(stdout);
  }

  size_t descriptor_size = 0;
  CALL(rpma_mr_get_descriptor_size(mr, &descriptor_size));
  uint8_t hello[56] = {0};
  REQUIRE(descriptor_size <= sizeof hello - 2);
  hello[0] = (uint8_t)descriptor_size;
  CALL(rpma_mr_get_descriptor(mr, hello + 1));
  struct rpma_conn_private_data private_data = {hello, (uint8_t)(descriptor_size + 1)};
  struct rpma_conn_cfg* cfg = make_cfg(kind, srq);
  for (int i = 0; i < count; i++) {
    struct rpma_conn_req* req = NULL;
    struct rpma_conn_private_data asked = {NULL, 0};
    CALL(rpma_ep_next_conn_req(ep, cfg, &req));
    CALL(rpma_conn_req_get_private_data(req, &asked));
    REQUIRE(asked.len >= 6 && strcmp(asked.ptr, "hello") == 0);
    if (receives(kind) && srq == NULL) {
      for (uintptr_t r = 0; r < 16; r++) CALL(rpma_conn_req_recv(req, mr, r * 64, 64, (void*)r));
    }
    CALL(rpma_conn_req_connect(&req, &private_data, &conns[i]));
    next_event(conns[i], RPMA_CONN_ESTABLISHED);
  }
  if (receives(kind)) {
    /* Each message goes back to whom it came from, with its immediate where it has one. */
    for (int i = 0; i < MESSAGES * count; i++) {
      struct rpma_conn* conn = conns[0];
      struct ibv_wc wc;
      if (kind == SHARED_CHANNEL) {
        wc = next_wc_shared(conn);
      } else {
        wc = next_wc(srq != NULL ? srq_cq : receive_cq(conn));
      }
      REQUIRE(wc.status == IBV_WC_SUCCESS);
      const size_t offset = wc.wr_id * 64;
      for (int c = 0; srq != NULL && c < count; c++) {
        uint32_t qp_num = 0;
        CALL(rpma_conn_get_qp_num(conns[c], &qp_num));
        if (qp_num == wc.qp_num) conn = conns[c];
      }
      struct rpma_cq* cq = NULL;
      CALL(rpma_conn_get_cq(conn, &cq));
      if (kind == WRITE_WITH_IMM || kind == SEND_WITH_IMM) {
        REQUIRE((wc.wc_flags & IBV_WC_WITH_IMM) != 0 && ntohl(wc.imm_data) == (uint32_t)i);
        REQUIRE(wc.opcode == (kind == SEND_WITH_IMM ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM));
        CALL(rpma_send_with_imm(conn, mr, kind == SEND_WITH_IMM ? offset : 8192, 64,
                                RPMA_F_COMPLETION_ALWAYS, (uint32_t)i, NULL));
      } else {
        CALL(rpma_send(conn, mr, offset, 64, RPMA_F_COMPLETION_ALWAYS, NULL));
      }
      if (kind == SHARED_CHANNEL) {
        /* Its completion is collected while waiting for the next receive; the last one here. */
        while (i + 1 == MESSAGES * count && rpma_cq_get_wc(cq, 1, &wc, NULL) != 0) sched_yield();
      } else if (kind == MESSAGES_KIND || kind == WRITE_WITH_IMM || kind == SEND_WITH_IMM) {
        /* One CQ for both: the client waits for the answer, so no receive can come between. */
        REQUIRE(next_wc(cq).opcode == IBV_WC_SEND);
      } else {
        next_wc(cq);
      }
      if (srq != NULL) {
        CALL(rpma_srq_recv(srq, mr, offset, 64, (void*)(offset / 64)));
      } else {
        CALL(rpma_recv(conn, mr, offset, 64, (void*)(offset / 64)));
      }
    }
  }
  for (int i = 0; i < count; i++) {
    next_event(conns[i], RPMA_CONN_CLOSED);
    CALL(rpma_conn_disconnect(conns[i]));
  }
  if (kind == WRITE || kind == FLUSH) REQUIRE(strcmp((char*)region + 8192, "written") == 0);
  if (kind == ATOMIC_WRITE) REQUIRE(memcmp(region + 8192, "8 bytes!", 8) == 0);
  if (kind == WRITE_WITH_IMM) REQUIRE(strcmp((char*)region + 8192, "message 199") == 0);
  pthread_mutex_lock(&setup);
  for (int i = 0; i < count; i++) CALL(rpma_conn_delete(&conns[i]));
  CALL(rpma_ep_shutdown(&ep));
  if (srq != NULL) CALL(rpma_srq_delete(&srq));
  CALL(rpma_conn_cfg_delete(&cfg));
  CALL(rpma_mr_dereg(&mr));
  CALL(rpma_peer_delete(&peer));
  pthread_mutex_unlock(&setup);
  free(region);
}

static void use(struct rpma_conn* conn, struct rpma_mr_local* mr, uint8_t* region, enum kind kind) {
  struct rpma_conn_private_data data = {NULL, 0};
  struct rpma_mr_remote* remote = NULL;
  struct rpma_cq* cq = NULL;
  CALL(rpma_conn_get_private_data(conn, &data));
  REQUIRE(data.len >= 2);
  const uint8_t* bytes = data.ptr;
  CALL(rpma_mr_remote_from_descriptor(bytes + 1, bytes[0], &remote));
  CALL(rpma_conn_get_cq(conn, &cq));
  switch (kind) {
    case READ:
      CALL(rpma_read(conn, mr, 0, remote, 4096, 11, RPMA_F_COMPLETION_ALWAYS, (void*)5));
      REQUIRE(next_wc(cq).wr_id == 5 && strcmp((char*)region, "to be read") == 0);
      break;
    case WRITE:
    case FLUSH:
      strcpy((char*)region, "written");
      if (kind == WRITE) {
        CALL(rpma_write(conn, remote, 8192, mr, 0, 8, RPMA_F_COMPLETION_ALWAYS, (void*)6));
        const struct ibv_wc wc = next_wc(cq);
        REQUIRE(wc.wr_id == 6 && wc.opcode == IBV_WC_RDMA_WRITE);
      } else {
        CALL(rpma_write(conn, remote, 8192, mr, 0, 8, RPMA_F_COMPLETION_ON_ERROR, NULL));
        CALL(rpma_flush(conn, remote, 8192, 8, RPMA_FLUSH_TYPE_VISIBILITY, RPMA_F_COMPLETION_ALWAYS,
                        (void*)7));
        REQUIRE(next_wc(cq).wr_id == 7);
      }
      break;
    case ATOMIC_WRITE:
      CALL(rpma_atomic_write(conn, remote, 8192, "8 bytes!", RPMA_F_COMPLETION_ALWAYS, (void*)8));
      REQUIRE(next_wc(cq).wr_id == 8);
      break;
    default: break;
  }
  if (receives(kind)) {
    for (uint32_t i = 0; i < MESSAGES; i++) {
      CALL(rpma_recv(conn, mr, 4096, 64, (void*)1));
      snprintf((char*)region, 64, "message %u", i);
      if (kind == WRITE_WITH_IMM) {
        CALL(rpma_write_with_imm(conn, remote, 8192, mr, 0, 64, RPMA_F_COMPLETION_ON_ERROR, i,
                                 NULL));
      } else if (kind == SEND_WITH_IMM) {
        CALL(rpma_send_with_imm(conn, mr, 0, 64, RPMA_F_COMPLETION_ON_ERROR, i, NULL));
      } else {
        CALL(rpma_send(conn, mr, 0, 64,
                       i % 8 == 7 ? RPMA_F_COMPLETION_ALWAYS : RPMA_F_COMPLETION_ON_ERROR, NULL));
      }
      struct ibv_wc wc;
      do {
        wc = kind == SHARED_CHANNEL ? next_wc_shared(conn) : next_wc(receive_cq(conn));
      } while ((wc.opcode & IBV_WC_RECV) == 0);
      REQUIRE(wc.status == IBV_WC_SUCCESS && wc.byte_len == 64);
      REQUIRE(memcmp(region, region + 4096, 64) == 0);
      if (kind == SEND_WITH_IMM) REQUIRE(ntohl(wc.imm_data) == i);
      /* Signalled sends of kinds with a CQ of their own are collected there. */
      if (kind == RECEIVE_CQ && i % 8 == 7) next_wc(cq);
    }
  }
  CALL(rpma_mr_remote_delete(&remote));
}

static void connect_and_use(struct side* side) {
  struct rpma_conn* conns[MANY] = {NULL};
  struct rpma_mr_local* mr = NULL;
  const enum kind kind = side->kind;
  const int count = kind == MANY_CONNECTIONS ? MANY : kind == SRQ ? 4 : 1;
  uint8_t* region = aligned_alloc(4096, REGION);
  REQUIRE(region != NULL);
  memset(region, 0, REGION);
  if (side->listening != NULL) pthread_barrier_wait(side->listening);
  pthread_mutex_lock(&setup);
  struct rpma_peer* peer = make_peer(side->address, RPMA_UTIL_IBV_CONTEXT_REMOTE);
  CALL(rpma_mr_reg(
      peer, region, REGION,
      RPMA_MR_USAGE_READ_DST | RPMA_MR_USAGE_WRITE_SRC | RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV,
      &mr));
  struct rpma_conn_cfg* cfg = make_cfg(kind == SRQ ? MESSAGES_KIND : kind, NULL);
  pthread_mutex_unlock(&setup);
  struct rpma_conn_private_data hello = {(void*)"hello", 6};
  for (int i = 0; i < count; i++) {
    struct rpma_conn_req* req = NULL;
    pthread_mutex_lock(&setup);
    CALL(rpma_conn_req_new(peer, side->address, side->port, cfg, &req));
    CALL(rpma_conn_req_connect(&req, &hello, &conns[i]));
    pthread_mutex_unlock(&setup);
    next_event(conns[i], RPMA_CONN_ESTABLISHED);
  }
  for (int i = 0; i < count; i++) use(conns[i], mr, region, kind);
  for (int i = 0; i < count; i++) {
    CALL(rpma_conn_disconnect(conns[i]));
    next_event(conns[i], RPMA_CONN_CLOSED);
  }
  pthread_mutex_lock(&setup);
  for (int i = 0; i < count; i++) CALL(rpma_conn_delete(&conns[i]));
  CALL(rpma_conn_cfg_delete(&cfg));
  CALL(rpma_mr_dereg(&mr));
  CALL(rpma_peer_delete(&peer));
  pthread_mutex_unlock(&setup);
  free(region);
}

static void* serve_thread(void* side) {
  serve(side);
  return NULL;
}

static enum kind parse_kind(const char* name) {
  for (int k = 0; k < KINDS; k++) {
    if (strcmp(kind_names[k], name) == 0) return (enum kind)k;
  }
  fprintf(stderr, "unknown kind '%s'\n", name);
  exit(2);
}

int main(int argc, char** argv) {
  alarm(TIMEOUT_S); /* only ends a hang */
  struct side side = {NULL, "0", CONNECTION, NULL};
  if (argc == 2 && strcmp(argv[1], "kinds") == 0) {
    for (int k = 0; k < KINDS; k++) puts(kind_names[k]);
    return 0;
  }
  if (argc == 4 && strcmp(argv[1], "both") == 0) {
    pthread_barrier_t listening;
    pthread_t server;
    side.address = argv[2];
    side.kind = parse_kind(argv[3]);
    REQUIRE(pthread_barrier_init(&listening, NULL, 2) == 0);
    side.listening = &listening;
    REQUIRE(pthread_create(&server, NULL, serve_thread, &side) == 0);
    connect_and_use(&side);
    REQUIRE(pthread_join(server, NULL) == 0);
    return 0;
  }
  if (argc == 5 && (strcmp(argv[1], "server") == 0 || strcmp(argv[1], "client") == 0)) {
    side.address = argv[2];
    snprintf(side.port, sizeof side.port, "%s", argv[3]);
    side.kind = parse_kind(argv[4]);
    if (argv[1][0] == 's') {
      serve(&side);
    } else {
      connect_and_use(&side);
    }
    return 0;
  }
  fprintf(stderr, "usage: see the head of softrdma_kinds.c\n");
  return 2;
}
