#include "transport/shared_memory.h"

#include <cstring>

namespace q7x2 {
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
  check_ucx(ucp_mem_map(context.get(), &params, &memory), "allocate shared memory");
  memory_.reset(memory);

  ucp_mem_attr_t attributes{};
  attributes.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
  check_ucx(ucp_mem_query(memory, &attributes), "tell where shared memory lies");
  data_ = static_cast<std::byte*>(attributes.address);

  void* packed = nullptr;
  size_t length = 0;
  check_ucx(ucp_rkey_pack(context.get(), memory, &packed, &length), "describe shared memory");
  const auto address = reinterpret_cast<uint64_t>(data_);
  key_.assign(reinterpret_cast<const char*>(&address), sizeof(address));
  key_.append(static_cast<const char*>(packed), length);
  ucp_rkey_buffer_release(packed);
}

MappedMemory::MappedMemory(const UcpEndpoint& endpoint, std::string_view key)
    : remote_key_(nullptr, ucp_rkey_destroy) {
  uint64_t address = 0;
  if (key.size() <= sizeof(address)) {
    throw Error(ErrorCode::kTransport,
                "a key to shared memory of " + std::to_string(key.size()) + " bytes is cut short");
  }
  std::memcpy(&address, key.data(), sizeof(address));
  ucp_rkey_h remote_key = nullptr;
  check_ucx(ucp_ep_rkey_unpack(endpoint.get(), key.data() + sizeof(address), &remote_key),
            "read the key to a peer's shared memory");
  remote_key_.reset(remote_key);
  void* data = nullptr;
  check_ucx(ucp_rkey_ptr(remote_key, address, &data), "map a peer's shared memory");
  data_ = static_cast<std::byte*>(data);
}

}  // namespace q7x2
