// SPDX-License-Identifier: BSD-3-Clause
// RocksDB's library is not instrumented: ThreadSanitizer sees what it copies and locks, and the
// inline functions of its headers, but not the atomics by which it synchronises its threads. What
// our own threads share is seen as ever.

extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "called_from_lib:librocksdb.so\nrace:rocksdb::\n";
}
