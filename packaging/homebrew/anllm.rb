# A draft, for a tap of one's own: there is no release yet, so it installs the newest commit of a clone, whose place
# HOMEBREW_ANLLM_CLONE names. Python packages are those of locks/macos.txt, by hash. docs/packages.md says how to use it.
class Anllm < Formula
  desc "Serve language models on Apple's MLX behind the OpenAI HTTP API"
  homepage "https://example.com/anllm" # with the first release
  license "Apache-2.0"
  head "file://#{ENV.fetch("HOMEBREW_ANLLM_CLONE", "/nowhere")}", using: :git, branch: "main"

  depends_on arch: :arm64
  depends_on macos: :sonoma
  depends_on "python@3.13"

  def install
    system Formula["python@3.13"].opt_bin/"python3.13", "-m", "venv", libexec
    pip = [libexec/"bin/python", "-m", "pip", "install", "--disable-pip-version-check"]
    %w[pip build macos].each { |lock| system(*pip, "--require-hashes", "-r", "locks/#{lock}.txt") }
    system(*pip, "--no-index", "--no-deps", "--no-build-isolation", ".")
    bin.install_symlink libexec/"bin/anllm"
    generate_completions_from_executable(bin/"anllm", shell_parameter_format: :click)
  end

  service do
    run [opt_bin/"anllm", "serve"]
    keep_alive crashed: true
    log_path var/"log/anllm.log"
    error_log_path var/"log/anllm.log"
  end

  test do
    assert_match(/\d+\.\d+\.\d+/, shell_output("#{bin}/anllm --version"))
    assert_match "no model", shell_output("#{bin}/anllm serve nothing 2>&1", 1)
  end
end
