// SPDX-License-Identifier: BSD-3-Clause
// Every other symbol of libibverbs and librdmacm. A call that reached the real libraries with one
// of our objects would take it for one of theirs, so all are here, and fail. The public headers are
// left out on purpose: these definitions do not follow their types, only their calling convention
// (the result in the first register).
#include <cerrno>
#include <cstdint>

#include "log.hpp"

struct rdma_cm_id;
extern "C" int rdma_reject(struct rdma_cm_id*, const void*, std::uint8_t);

// Return NULL with errno.
#define SOFTRDMA_UNSUPPORTED_POINTERS(X) \
  X(_verbs_init_and_alloc_context)       \
  X(ibv_create_ah)                       \
  X(ibv_create_ah_from_wc)               \
  X(ibv_import_device)                   \
  X(ibv_import_dm)                       \
  X(ibv_import_mr)                       \
  X(ibv_import_pd)                       \
  X(ibv_qp_to_qp_ex)                     \
  X(ibv_reg_dmabuf_mr)                   \
  X(verbs_open_device)

// Return -1 with errno.
#define SOFTRDMA_UNSUPPORTED_MINUS_ONE(X) \
  X(ibv_init_ah_from_wc)                  \
  X(ibv_read_ibdev_sysfs_file)            \
  X(ibv_read_sysfs_file)                  \
  X(ibv_resolve_eth_l2_from_gid)          \
  X(raccept)                              \
  X(rbind)                                \
  X(rclose)                               \
  X(rconnect)                             \
  X(rdma_get_remote_ece)                  \
  X(rdma_join_multicast)                  \
  X(rdma_join_multicast_ex)               \
  X(rdma_leave_multicast)                 \
  X(rdma_set_local_ece)                   \
  X(rfcntl)                               \
  X(rgetpeername)                         \
  X(rgetsockname)                         \
  X(rgetsockopt)                          \
  X(riomap)                               \
  X(riounmap)                             \
  X(riowrite)                             \
  X(rlisten)                              \
  X(rpoll)                                \
  X(rread)                                \
  X(rreadv)                               \
  X(rrecv)                                \
  X(rrecvfrom)                            \
  X(rrecvmsg)                             \
  X(rselect)                              \
  X(rsend)                                \
  X(rsendmsg)                             \
  X(rsendto)                              \
  X(rsetsockopt)                          \
  X(rshutdown)                            \
  X(rsocket)                              \
  X(rwrite)                               \
  X(rwritev)

// Return an errno.
#define SOFTRDMA_UNSUPPORTED_ERRNOS(X) \
  X(__ioctl_final_num_attrs)           \
  X(execute_ioctl)                     \
  X(ibv_attach_mcast)                  \
  X(ibv_cmd_advise_mr)                 \
  X(ibv_cmd_alloc_dm)                  \
  X(ibv_cmd_alloc_mw)                  \
  X(ibv_cmd_alloc_pd)                  \
  X(ibv_cmd_attach_mcast)              \
  X(ibv_cmd_close_xrcd)                \
  X(ibv_cmd_create_ah)                 \
  X(ibv_cmd_create_counters)           \
  X(ibv_cmd_create_cq)                 \
  X(ibv_cmd_create_cq_ex)              \
  X(ibv_cmd_create_flow)               \
  X(ibv_cmd_create_flow_action_esp)    \
  X(ibv_cmd_create_qp)                 \
  X(ibv_cmd_create_qp_ex)              \
  X(ibv_cmd_create_qp_ex2)             \
  X(ibv_cmd_create_rwq_ind_table)      \
  X(ibv_cmd_create_srq)                \
  X(ibv_cmd_create_srq_ex)             \
  X(ibv_cmd_create_wq)                 \
  X(ibv_cmd_dealloc_mw)                \
  X(ibv_cmd_dealloc_pd)                \
  X(ibv_cmd_dereg_mr)                  \
  X(ibv_cmd_destroy_ah)                \
  X(ibv_cmd_destroy_counters)          \
  X(ibv_cmd_destroy_cq)                \
  X(ibv_cmd_destroy_flow)              \
  X(ibv_cmd_destroy_flow_action)       \
  X(ibv_cmd_destroy_qp)                \
  X(ibv_cmd_destroy_rwq_ind_table)     \
  X(ibv_cmd_destroy_srq)               \
  X(ibv_cmd_destroy_wq)                \
  X(ibv_cmd_detach_mcast)              \
  X(ibv_cmd_free_dm)                   \
  X(ibv_cmd_get_context)               \
  X(ibv_cmd_modify_cq)                 \
  X(ibv_cmd_modify_flow_action_esp)    \
  X(ibv_cmd_modify_qp)                 \
  X(ibv_cmd_modify_qp_ex)              \
  X(ibv_cmd_modify_srq)                \
  X(ibv_cmd_modify_wq)                 \
  X(ibv_cmd_open_qp)                   \
  X(ibv_cmd_open_xrcd)                 \
  X(ibv_cmd_poll_cq)                   \
  X(ibv_cmd_post_recv)                 \
  X(ibv_cmd_post_send)                 \
  X(ibv_cmd_post_srq_recv)             \
  X(ibv_cmd_query_context)             \
  X(ibv_cmd_query_device_any)          \
  X(ibv_cmd_query_mr)                  \
  X(ibv_cmd_query_port)                \
  X(ibv_cmd_query_qp)                  \
  X(ibv_cmd_query_srq)                 \
  X(ibv_cmd_read_counters)             \
  X(ibv_cmd_reg_dm_mr)                 \
  X(ibv_cmd_reg_dmabuf_mr)             \
  X(ibv_cmd_reg_mr)                    \
  X(ibv_cmd_req_notify_cq)             \
  X(ibv_cmd_rereg_mr)                  \
  X(ibv_cmd_resize_cq)                 \
  X(ibv_destroy_ah)                    \
  X(ibv_detach_mcast)                  \
  X(ibv_query_ece)                     \
  X(ibv_set_ece)

// Return nothing.
#define SOFTRDMA_UNSUPPORTED_VOIDS(X) \
  X(__verbs_log)                      \
  X(ibv_copy_ah_attr_from_kern)       \
  X(ibv_copy_path_rec_from_kern)      \
  X(ibv_copy_path_rec_to_kern)        \
  X(ibv_copy_qp_attr_from_kern)       \
  X(ibv_register_driver)              \
  X(ibv_unimport_dm)                  \
  X(ibv_unimport_mr)                  \
  X(ibv_unimport_pd)                  \
  X(verbs_init_cq)                    \
  X(verbs_register_driver_34)         \
  X(verbs_set_ops)                    \
  X(verbs_uninit_context)

extern "C" {

#define SOFTRDMA_DEFINE(name)     \
  void* name() {                  \
    softrdma::unsupported(#name); \
    return nullptr;               \
  }
SOFTRDMA_UNSUPPORTED_POINTERS(SOFTRDMA_DEFINE)
#undef SOFTRDMA_DEFINE

#define SOFTRDMA_DEFINE(name)     \
  long name() {                   \
    softrdma::unsupported(#name); \
    return -1;                    \
  }
SOFTRDMA_UNSUPPORTED_MINUS_ONE(SOFTRDMA_DEFINE)
#undef SOFTRDMA_DEFINE

#define SOFTRDMA_DEFINE(name)     \
  long name() {                   \
    softrdma::unsupported(#name); \
    return EOPNOTSUPP;            \
  }
SOFTRDMA_UNSUPPORTED_ERRNOS(SOFTRDMA_DEFINE)
#undef SOFTRDMA_DEFINE

#define SOFTRDMA_DEFINE(name)     \
  void name() {                   \
    softrdma::unsupported(#name); \
  }
SOFTRDMA_UNSUPPORTED_VOIDS(SOFTRDMA_DEFINE)
#undef SOFTRDMA_DEFINE

// A variable, private to libibverbs and its providers.
bool verbs_allow_disassociate_destroy = false;

// Pages are not pinned, so fork() needs no care.
int ibv_dofork_range(void*, unsigned long) {
  return 0;
}
int ibv_dontfork_range(void*, unsigned long) {
  return 0;
}
const char* ibv_get_sysfs_path() {
  return "/sys";
}
// Rejecting for want of a common extension is a rejection.
int rdma_reject_ece(struct rdma_cm_id* id, const void* data, std::uint8_t size) {
  return rdma_reject(id, data, size);
}

}  // extern "C"
