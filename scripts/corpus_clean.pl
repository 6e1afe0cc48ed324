# Turns one domain's files into plain UTF-8 text, cut to a size, the last 5% of every source held out. Called by corpus.sh; runs on perl-base alone.
#   perl corpus_clean.pl LISTS OUT DOMAIN KIND:BYTES:LIST...      LISTS/LIST names the files of a source; KIND is text, html, translated (html) or code
# The same files give the same bytes on every machine: files come in the order of a hash of their path (so that a cut
# takes something of every part of a package), and whatever is not valid UTF-8 is left out whole.
use strict;
use warnings;

my ($lists, $out, $domain, @sources) = @ARGV;
my %entity = (amp => '&', lt => '<', gt => '>', quot => '"', apos => "'", nbsp => ' ', mdash => "\x{2014}", ndash => "\x{2013}");
my %seen;    # paragraphs already taken in this domain: pages repeat their headers, and a repeat in the held-out part would flatter a model

sub hash_of {    # FNV-1a, 32 bits
  my $hash = 2166136261;
  $hash = (($hash ^ ord) * 16777619) & 0xffffffff for split //, shift;
  return $hash;
}

sub read_file {
  my ($path) = @_;
  my @open = $path =~ /\.gz$/ ? ('-|', 'zcat', $path) : ('<', $path);
  open my $in, shift @open, @open or die "corpus_clean.pl: cannot read $path: $!\n";
  binmode $in;
  local $/;
  my $text = <$in> // '';
  return '' unless utf8::decode($text);
  $text =~ s/\r\n?/\n/g;
  $text =~ s/\x{feff}//g;
  $text =~ s/[^\S\n\t]/ /g;
  $text =~ s/[\x00-\x08\x0b-\x1f\x7f-\x9f\x{ad}\x{200b}-\x{200f}]//g;
  return $text;
}

# One paragraph a line; navigation, listings and anything shorter than a sentence dropped.
sub from_html {
  my ($text) = @_;
  $text =~ s/\s+/ /g;
  $text =~ s/<!--.*?-->//g;
  $text =~ s/<(head|script|style|nav|footer|aside|header|pre|form)\b.*?<\/\1>/\n/gi;
  $text =~ s/<\/?(?:br|p|div|h\d|li|ul|ol|tr|td|th|dt|dd|table|section|body)\b[^>]*>/\n/gi;
  $text =~ s/<[^>]*>//g;
  $text =~ s/&#(\d+);/chr $1/ge;
  $text =~ s/&#x([0-9a-f]+);/chr hex $1/gei;
  $text =~ s/&(\w+);/$entity{$1} \/\/ ' '/ge;
  my @kept;
  for my $line (split /\n/, $text) {
    $line =~ s/[ \xa0]+/ /g;
    $line =~ s/^ | $|\x{b6}//g;
    push @kept, $line if length $line >= 50 && $line =~ /[.:!?]/ && $line !~ /\bnot found\]/ && !$seen{$line}++;
  }
  return join "\n", @kept;
}

# Translations are rarely complete: a line with three of English's commonest words is one that was left in English.
sub from_translated {
  return join "\n", grep { (() = /\b(?:the|of|and|is|that|with|are|for|this|you|be|it)\b/gi) < 3 } split /\n/, from_html(shift);
}

# Paragraphs stay wrapped as they are; their common indentation goes.
sub from_text {
  my ($text) = @_;
  $text =~ s/\t/        /g;
  $text =~ s/^ +$//gm;
  my @kept;
  for my $paragraph (split /\n\n+/, $text) {
    next unless $paragraph =~ /\w/;
    my ($indent) = sort { $a <=> $b } map { length } $paragraph =~ /^( *)(?=\S)/gm;
    $paragraph =~ s/^ {$indent}//gm;
    $paragraph =~ s/ +$//gm;
    push @kept, $paragraph if !$seen{$paragraph}++;
  }
  return join "\n\n", @kept;
}

# The licence at the head of a file is the same text hundreds of times: the leading comment goes when it speaks of one.
sub from_code {
  my ($text) = @_;
  while ($text =~ s{\A((?:\s*(?://|\#(?!include|if|def|pragma|!))[^\n]*\n)+|\s*/\*.*?\*/[^\n]*\n)}{}s) {
    my $comment = $1;
    next if $comment =~ /copyright|licen[cs]e|warranty/i;
    $text = $comment . $text;
    last;
  }
  $text =~ s/[ \t]+$//gm;
  $text =~ s/^.{300,}\n//gm;
  $text =~ s/\n{3,}/\n\n/g;
  $text =~ s/\A\n+//;
  return $text;
}

my %clean = (html => \&from_html, translated => \&from_translated, text => \&from_text, code => \&from_code);
open my $train, '>', "$out/train/$domain.txt" or die "corpus_clean.pl: $out/train/$domain.txt: $!\n";
open my $valid, '>', "$out/valid/$domain.txt" or die "corpus_clean.pl: $out/valid/$domain.txt: $!\n";
for my $source (@sources) {
  my ($kind, $budget, $list) = split /:/, $source;
  open my $names, '<', "$lists/$list" or die "corpus_clean.pl: $lists/$list: $!\n";
  chomp(my @files = <$names>);
  my %key = map { $_ => hash_of($_) } @files;
  my $all = '';
  for my $file (sort { $key{$a} <=> $key{$b} || $a cmp $b } @files) {
    my $text = $clean{$kind}->(read_file($file));
    utf8::encode($text);
    $text =~ s/\s+\z//;
    $all .= "$text\n\n" if length $text >= 200;
    last if length $all >= $budget;
  }
  # Both cuts fall behind a line's end, so that no character and no line is split.
  $all = substr $all, 0, 1 + rindex($all, "\n", $budget - 1) if length $all > $budget;
  my $cut = 1 + rindex $all, "\n", int(0.95 * length $all);
  print $train substr $all, 0, $cut;
  print $valid substr $all, $cut;
}
close $train or die "corpus_clean.pl: $out/train/$domain.txt: $!\n";
close $valid or die "corpus_clean.pl: $out/valid/$domain.txt: $!\n";
