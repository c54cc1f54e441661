#include "transport/shm/shared_memory.h"

#include <cstring>

#include "transport/quirks/private_segments.h"

namespace q7x2 {
namespace {

// The part of a key before UCX's own.
struct Prefix {
  uint64_t address;
  uint64_t bytes;
};

}  // namespace

SharedMemory::SharedMemory(const UcpContext& context, size_t bytes)
    : memory_(nullptr, Unmap{context.get()}) {
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_FLAGS | UCP_MEM_MAP_PARAM_FIELD_PROT;
  params.address = nullptr;
  params.length = bytes;
  params.flags = UCP_MEM_MAP_ALLOCATE | UCP_MEM_MAP_NONBLOCK;
  params.prot = UCP_MEM_MAP_PROT_LOCAL_READ | UCP_MEM_MAP_PROT_LOCAL_WRITE |
                UCP_MEM_MAP_PROT_REMOTE_READ | UCP_MEM_MAP_PROT_REMOTE_WRITE;
  ucp_mem_h memory = nullptr;
  const PrivateSegments before;
  check_ucx(ucp_mem_map(context.get(), &params, &memory), "allocate shared memory");
  memory_.reset(memory);
  before.restrict_newer();

  ucp_mem_attr_t attributes{};
  attributes.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
  check_ucx(ucp_mem_query(memory, &attributes), "find the address of shared memory");
  data_ = static_cast<std::byte*>(attributes.address);

  void* packed = nullptr;
  size_t length = 0;
  check_ucx(ucp_rkey_pack(context.get(), memory, &packed, &length), "describe shared memory");
  const Prefix prefix{reinterpret_cast<uint64_t>(data_), bytes};
  key_.assign(reinterpret_cast<const char*>(&prefix), sizeof(prefix));
  key_.append(static_cast<const char*>(packed), length);
  ucp_rkey_buffer_release(packed);
}

MappedMemory::MappedMemory(const UcpEndpoint& endpoint, std::string_view key, size_t bytes)
    : remote_key_(nullptr, ucp_rkey_destroy) {
  Prefix prefix{};
  if (key.size() <= sizeof(prefix)) {
    throw Error(ErrorCode::kTransport,
                "a key to shared memory of " + std::to_string(key.size()) + " bytes is cut short");
  }
  std::memcpy(&prefix, key.data(), sizeof(prefix));
  if (prefix.bytes != bytes) {
    throw Error(ErrorCode::kTransport, "a peer's shared memory has " +
                                           std::to_string(prefix.bytes) + " bytes, expected " +
                                           std::to_string(bytes));
  }
  ucp_rkey_h remote_key = nullptr;
  check_ucx(ucp_ep_rkey_unpack(endpoint.get(), key.data() + sizeof(prefix), &remote_key),
            "read the key to a peer's shared memory");
  remote_key_.reset(remote_key);
  void* data = nullptr;
  check_ucx(ucp_rkey_ptr(remote_key, prefix.address, &data), "map a peer's shared memory");
  data_ = static_cast<std::byte*>(data);
}

}  // namespace q7x2
