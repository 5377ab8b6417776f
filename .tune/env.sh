cd $(dirname $0)/..; mkdir -p /tmp/t; xz -d --memlimit=4GiB < .tune/pack.tar.xz | tar xf - -C /tmp/t
S=$(python3 -c "import site;print(site.getsitepackages()[0])"); export LD_LIBRARY_PATH=/tmp/t/lib:$(find $S/nvidia -name lib -type d 2>/dev/null | tr '\n' ':')
T=/tmp/t/bin/topkv; $T --version; nproc; nvidia-smi -L
