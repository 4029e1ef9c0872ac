// SPDX-License-Identifier: BSD-3-Clause
// Pictures: lstopo draws the annotated XML. It is a program of its own, started without a shell.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "commands.hpp"
#include "output.hpp"

namespace sluice::plan_tool {
namespace {

namespace fs = std::filesystem;

/// A folder that is removed with all that is in it.
class TemporaryFolder {
 public:
  static Result<std::string> make() {
    std::error_code error;
    const fs::path parent = fs::temp_directory_path(error);
    if (error)
      return Status(StatusCode::io_error, "no folder for temporary files: " + error.message());
    std::string name = (parent / "sluice-plan.XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr)
      return Status(StatusCode::io_error, name + ": cannot be made: " + std::strerror(errno),
                    errno);
    return name;
  }
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  [[nodiscard]] std::string operator/(const std::string& name) const { return path_ + '/' + name; }

 private:
  std::string path_;
};

/// Runs a program to its end, its output in a file. The wait status, or why it did not start.
Result<int> run_program(std::vector<std::string> words, const std::string& log) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log.c_str(),
                                   O_WRONLY | O_CREAT | O_APPEND, 0600);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error == ENOENT)
    return Status(StatusCode::not_supported,
                  "lstopo is not there: install hwloc, or draw a .xml and have lstopo make the "
                  "picture elsewhere",
                  error);
  if (error != 0)
    return Status(StatusCode::io_error,
                  std::string("lstopo cannot be started: ") + std::strerror(error), error);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return Status(StatusCode::internal, "lstopo got lost", errno);
  }
  return status;
}

/// What lstopo said last, on one line.
std::string last_line_of(const std::string& log) {
  auto text = read_file(log);
  if (!text) return {};
  while (!text->empty() && text->back() == '\n') text->pop_back();
  const auto newline = text->rfind('\n');
  return newline == std::string::npos ? *text : text->substr(newline + 1);
}

std::string legend_of(const topology::Plan& plan) {
  return "Sluice on " + plan.machine.name() + ": " + std::to_string(plan.poller_count()) +
         (plan.poller_count() == 1 ? " poller" : " pollers") + " among " +
         std::to_string(plan.threads.size()) + " threads" +
         (plan.degraded.empty() ? "" : "; degraded, see sluice-plan plan");
}

/// OS indices (what the configuration and the kernel say), every PU drawn, and quiet colours for
/// what is no thread.
std::vector<std::string> lstopo_command(const topology::Plan& plan, const std::string& xml,
                                        const std::string& picture) {
  return {"lstopo",
          "--input",
          xml,
          "--output-format",
          picture.ends_with(".svg") ? "nativesvg" : "png",  // cairo's SVG has glyphs for its text
          "--disallowed",
          "--physical",
          "--no-factorize",
          "--no-text=group",
          "--disallowed-color",
          "none",
          "--binding-color",
          "none",
          "--palette",
          "package=#e4e4ec",
          "--palette",
          "group=#f2f2f6",
          "--palette",
          "group_in_package=#f2f2f6",
          "--palette",
          "core=#d0d0d0",
          "--no-default-legend",
          "--append-legend",
          legend_of(plan),
          "--fontsize",
          "12",
          "--force",
          picture};
}

Status draw_with_lstopo(const topology::Plan& plan, const std::string& xml,
                        const std::string& path) {
  auto made = TemporaryFolder::make();
  if (!made) return made.status();
  const TemporaryFolder folder(std::move(*made));
  const std::string picture = folder / ("picture" + fs::path(path).extension().string());
  SLUICE_RETURN_IF_ERROR(write_file(folder / "plan.xml", xml));
  auto status = run_program(lstopo_command(plan, folder / "plan.xml", picture), folder / "log");
  if (!status) return status.status();
  // lstopo ends with 0 after some failures, too: what counts is the picture.
  auto content = read_file(picture);
  if (*status != 0 || !content || content->empty())
    return {StatusCode::internal,
            path + ": lstopo did not draw it: " + last_line_of(folder / "log")};
  return write_file(path, *content);
}

}  // namespace

Status check_output_name(const std::string& path) {
  const std::string extension = fs::path(path).extension().string();
  if (extension == ".svg" || extension == ".png" || extension == ".xml") return {};
  return {StatusCode::invalid_argument,
          path + ": a picture's name ends in .svg or .png, or in .xml for lstopo to draw"};
}

Status draw(const topology::Plan& plan, const std::string& path) {
  auto xml = topology::annotated_xml(plan);
  if (!xml) return xml.status();
  if (path.ends_with(".xml")) return write_file(path, *xml);
  return draw_with_lstopo(plan, *xml, path);
}

}  // namespace sluice::plan_tool
