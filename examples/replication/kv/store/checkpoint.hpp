// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sluice/core/status.hpp"

namespace sluice::kv {

inline constexpr std::uint32_t kStoreFormat = 1;  ///< of the data folder and of checkpoints

/// A state of the store as a folder of files, to be sent to a replica. The folder holds these files
/// and their listing, kCheckpointListing, and nothing else.
struct Checkpoint {
  struct File {
    std::string name;  ///< within the folder; no path
    std::uint64_t bytes = 0;
    std::uint32_t crc32c = 0;
    friend bool operator==(const File&, const File&) = default;
  };
  std::uint32_t format = kStoreFormat;
  std::uint64_t cluster_id = 0;
  std::uint64_t epoch = 0;  ///< of the last entry that is in it
  std::uint64_t index = 0;  ///< of that entry; 0: it is empty
  std::vector<File> files;  ///< by name
  [[nodiscard]] std::uint64_t bytes() const noexcept;
  friend bool operator==(const Checkpoint&, const Checkpoint&) = default;
};

inline constexpr const char* kCheckpointListing = "CHECKPOINT";
inline constexpr std::size_t kCheckpointFilesMax = std::size_t{1} << 20;
inline constexpr std::uint64_t kListingBytesMax = std::uint64_t{256} << 20;

/// The listing as it is sent and stored (JSON), and back. Reading is safe whatever the text says:
/// names that lead out of the folder or come twice are refused. invalid_argument: it is malformed;
/// not_supported: a newer version wrote it.
[[nodiscard]] std::string to_text(const Checkpoint& checkpoint);
[[nodiscard]] Result<Checkpoint> parse_checkpoint(const std::string& text);

/// The listing that lies in the folder.
[[nodiscard]] Result<Checkpoint> read_checkpoint(const std::string& folder);
/// Reads everything in the folder through and compares: io_error names the first file that is
/// missing, of another size or with another CRC, or that is not in the listing. Blocks.
[[nodiscard]] Status verify_checkpoint(const std::string& folder, const Checkpoint& checkpoint);
/// Lists what is in the folder (`files` of `checkpoint` are filled in) and puts the listing there,
/// durably. Blocks.
[[nodiscard]] Status list_checkpoint(const std::string& folder, Checkpoint& checkpoint);

}  // namespace sluice::kv
